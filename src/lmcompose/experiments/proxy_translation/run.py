"""The whole experiment: two pretrained models of one family, a language that they hardly know, and LoRA.

    base        the large model
    antiexpert  the small model
    expert      the small model with a LoRA adapter, tuned on translations into the language
    proxy       base + alpha * (expert - antiexpert), of which nothing is trained
    tuned       the large model with an adapter that the same recipe made, on the same sentences in the same order

All of them are scored on translations by people that none of them was tuned on, and translate themselves. Every stage
is kept on disk; a run that was stopped goes on where it was.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from lmcompose.card import run_record
from lmcompose.errors import DataError, MemberError
from lmcompose.experiments import gaps
from lmcompose.experiments.proxy_translation import pairs
from lmcompose.experiments.proxy_translation.chrf import chrf
from lmcompose.experiments.proxy_translation.profiles import Profile
from lmcompose.experiments.proxy_translation.stages import WRITERS, Experiment
from lmcompose.experiments.stages import Stages

SHOWN = 4
"""Sentences of which the result holds all translations."""


def run(
    base: str | Path,
    small: str | Path,
    *,
    hornmt: str | Path,
    ntrex: str | Path,
    language: str = "som",
    seed: int = 0,
    folder: str | Path = "runs/proxy_translation",
    profile: Profile = Profile(),  # noqa: B008  # it is frozen
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the experiment; returns a result that is ready for JSON and `reporting.translation_tables`.

    Args:
        base, small: folders or hub ids of two models with one tokenizer.
        hornmt, ntrex: the folders of the two sets of sentences.
        language: "som" or "orm".
        seed: of the sentences that are chosen, of the adapters and of the order.
        folder: of the stages: what an earlier run has left there with the same settings is taken from there.
        command: what to record as the command.
        console: where progress goes; stderr by default.

    Raises:
        DataError: a file of sentences is missing, or has too few.
        MemberError: a model cannot be read.
    """
    if language not in pairs.LANGUAGES:
        raise DataError(f"There is no language '{language}'; there are {', '.join(pairs.LANGUAGES)}.")
    known = pairs.hornmt(hornmt, language)
    unseen = pairs.without(pairs.ntrex(ntrex, language), known)
    train = pairs.choose(known, profile.tuned_pairs, profile.longest, seed)
    test = pairs.choose(unseen, profile.tested_pairs, profile.longest, seed)
    sizes = {role: _parameters(name) for role, name in (("base", base), ("small", small))}  # before hours are spent
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    experiment = Experiment(
        str(base), str(small), train, test, language, seed, profile,
        Stages(Path(folder) / language, console or Console(stderr=True, highlight=False)),
    )  # fmt: skip
    adapters = {"expert": experiment.tuned("expert", str(small)), "tuned": experiment.tuned("tuned", str(base))}
    measured = experiment.measured()
    written = experiment.written()
    return {
        "what": "proxy_translation",
        **run_record({"profile": dataclasses.asdict(profile)}, seed=seed, command=command),
        "language": pairs.LANGUAGES[language],
        "members": {role: Path(name).name for role, name in (("base", base), ("small", small))},
        "parameters": sizes,
        "adapters": adapters,
        "title": f"translations into {pairs.LANGUAGES[language]}",
        **gaps.figures([measured], unit="characters"),
        "chrf": chrf(written, [translation for _, translation in test]),
        "samples": [
            {"english": test[at][0], "reference": test[at][1], **{name: written[name][at] for name in WRITERS}}
            for at in range(SHOWN)
        ],
        "stages": experiment.stages.seconds,
    }


def _parameters(name: str | Path) -> int:
    try:
        with torch.device("meta"):
            return int(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name)).num_parameters())
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise MemberError(f"'{name}' is no causal language model that can be read: {error}") from error
