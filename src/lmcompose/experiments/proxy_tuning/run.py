"""The whole experiment: stories are told, a family of models is trained on them, tuned, and scored on held-out text.

    base        the large model that is not to be tuned, trained on the stories
    antiexpert  the small model, trained on the same stories
    expert      the antiexpert, tuned
    proxy       base + alpha * (expert - antiexpert), of which nothing is trained
    tuned       the base itself, tuned as the expert was

Two further pairs ask whether the antiexpert must have read what the base has: "other" has read other stories by the
same teller, and "code" has read Python. Every stage is kept on disk; a run that was stopped goes on where it was.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase
from transformers.utils import logging

from lmcompose.card import run_record
from lmcompose.errors import MemberError
from lmcompose.experiments import gaps
from lmcompose.experiments.proxy_tuning import texts
from lmcompose.experiments.proxy_tuning.profiles import STORIES, Profile
from lmcompose.experiments.proxy_tuning.seed import Seed
from lmcompose.experiments.proxy_tuning.texts import TASKS
from lmcompose.experiments.stages import Report, Stages, stamp_of


def run(
    stories: str | Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    folder: str | Path = "runs/proxy_tuning",
    profile: Profile = STORIES,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the experiment; returns a result that is ready for JSON, `reporting.proxy_tables` and `reporting.plots`.

    Args:
        stories: the folder of stories260K, or of another small pretrained model and its tokenizer.
        seeds: of the initial weights and the order of the data; the texts are the same for all.
        folder: of the stages: what an earlier run has left there with the same settings is taken from there.
        profile: the sizes.
        command: what to record as the command.
        console: where progress goes; stderr by default.

    Raises:
        MemberError: there is no model at `stories`.
        DataError: the model tells no stories that can be used.
    """
    if not (Path(stories) / "config.json").exists():
        raise MemberError(
            f"There is no model in '{stories}'. Name the folder of stories260K with --stories FOLDER, or in the "
            "environment variable STORIES."
        )
    console = console or Console(stderr=True, highlight=False)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    teller = cast(LlamaForCausalLM, AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32).eval())
    tokenizer = AutoTokenizer.from_pretrained(stories)
    stages = Stages(Path(folder), console)
    told = _told(teller, tokenizer, profile, stages)
    rows = texts.rows_of(told, tokenizer, profile)
    parts, measured = [], []
    for seed in seeds:
        parts.append(Seed(seed, profile, rows, tokenizer, Path(folder), console, teller))
        measured.append(parts[-1].measured())
    shown = parts[0].shown()  # of one seed: nobody reads three times as many
    return {
        "what": "proxy_tuning",
        **run_record({"profile": dataclasses.asdict(profile)}, seed=seeds[0], command=command),
        "seeds": list(seeds),
        "parameters": parts[0].sizes(),
        "texts": {name: {"rows": len(each), "tokens": int(each.mask.sum())} for name, each in rows.items()},
        "stories": gaps.plain_losses([part["stories"] for part in measured]),
        "tasks": {
            task: {"title": title, **gaps.figures([part[task] for part in measured])} for task, title in TASKS.items()
        },
        "samples": {task: each["samples"] for task, each in shown.items()},
        "style": shown["diary"]["style"],
        "comparison": {task: each["comparison"] for task, each in shown.items()},
        "trace": shown["diary"]["trace"],
        "stages": [*stages.seconds, *(entry for part in parts for entry in part.stages.seconds)],
    }


def _told(
    teller: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, profile: Profile, stages: Stages
) -> texts.Texts:
    """All stories, by what they are for."""
    count = 2 * profile.stories + profile.tuning_stories + profile.held_out_stories

    def tell(report: Report) -> list[str]:
        return texts.tell_stories(
            teller, tokenizer, count, profile.new_tokens, profile.temperature, seed=0, report=report
        )

    weights = sum(float(parameter.detach().double().sum()) for parameter in teller.parameters())
    stamp = stamp_of(count, profile.new_tokens, profile.temperature, teller.num_parameters(), weights)
    label = f"{count:,} stories, told by the pretrained model"
    return texts.divide(stages.kept("stories", label, stamp, tell), profile)
