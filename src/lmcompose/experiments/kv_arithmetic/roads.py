"""The roads that the paper left open, each measured once beside the paper's own: `python -m` this module runs them.

On the demo's task and members, with the same composition data and as many steps: one composition as in the paper, and
one for every entry of `ROADS`, which says what is different. A seed is one of bridges and of composition data; members,
keys and test expressions are the same for all, so that every difference is one between answers to the same questions.
"""

import argparse
import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from lmcompose.calm.model import CalmForCausalLM
from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.experiments.commands import carry_out, command_of, conclude, write_files
from lmcompose.experiments.kv_arithmetic.composition import compose_members, train_composition
from lmcompose.experiments.kv_arithmetic.differences import figures
from lmcompose.experiments.kv_arithmetic.evaluate import answers_of
from lmcompose.experiments.kv_arithmetic.profiles import Profile, profile_named
from lmcompose.experiments.kv_arithmetic.run import READY_SEED, made_members, origin, ready_members
from lmcompose.experiments.kv_arithmetic.task import Task
from lmcompose.experiments.stages import Report, Stages, stamp_of
from lmcompose.folders import write_text_atomic
from lmcompose.reporting.road_plots import roads_figure
from lmcompose.reporting.road_tables import roads_grids, roads_markdown, with_section

DEFAULT = "default"


@dataclass(frozen=True)
class Road:
    """One way to compose the two members, by what is different from the default.

    Args:
        title: its name in tables.
        options: of `compose`.
        swapped: the roles are swapped: the model that knows the keys is the anchor, and attends to the one that
            calculates.
    """

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    swapped: bool = False


ROADS = {
    DEFAULT: Road("as in the paper"),
    "mlp": Road("two-layer f_proj", {"projection": "mlp"}),
    "gate": Road("gate", {"gate": True}),
    "norm": Road("norm", {"norm": True}),
    "rank_32": Road("rank 32", {"rank": 32}),
    "rank_8": Road("rank 8", {"rank": 8}),
    "heads_4": Road("N_H = 4", {"num_heads": 4}),
    "heads_1": Road("N_H = 1", {"num_heads": 1}),
    "encoder": Road("m_A as an encoder", {"reads": "prompt"}),
    "unfreeze_anchor": Road("layer 1 of m_B", {"unfreeze": {"anchor": [1]}}),
    "unfreeze_augmenting": Road("layer 2 of m_A", {"unfreeze": {"augmenting": [2]}}),
    "reverse": Road("reverse direction", swapped=True),
    "reverse_late": Road("reverse, last layer", {"connections": [(2, 2)]}, swapped=True),
    "reverse_norm": Road("reverse, last, norm", {"connections": [(2, 2)], "norm": True}, swapped=True),
}
"""The default first. One more line is one more road."""


def run(
    profile: str = "demo",
    roads: Sequence[str] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    folder: Path = Path("runs/kv_arithmetic/roads"),
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and test the default and `roads`.

    Args:
        profile: a name in `PROFILES`.
        roads: names in `ROADS`; all by default.
        seeds: of bridges and composition data.
        steps: train so many steps, in place of the profile's.
        folder: what was trained and answered is kept here, so that a run that was stopped goes on where it was.
        command: what to record as the command.
        console: where progress goes; stderr by default.

    Raises:
        ConfigurationError: there is no such profile or road.
    """
    chosen = _chosen(roads)
    settings = profile_named(profile)
    if steps is not None:
        settings = dataclasses.replace(settings, composition=dataclasses.replace(settings.composition, steps=steps))
    console = console or Console(stderr=True, highlight=False)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ready = ready_members() if profile == "demo" else None
    task = settings.task(READY_SEED)
    anchor, augmenting = made_members(settings, task, READY_SEED, Stages(folder, console), ready)
    anchor.name_or_path, augmenting.name_or_path = "../../anchor", "../../augmenting"  # from a composition's folder
    arms: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for seed in seeds:
        stages = Stages(folder / f"seed-{seed}", console)
        for name, road in chosen.items():
            stamp = stamp_of(*origin(ready), settings, road.options, road.swapped, seed)
            members = [copy.deepcopy(member) for member in (anchor, augmenting)]  # a road may train parts of its own
            arms[name].append(_arm(name, road, settings, task, seed, members, stages, stamp))
    return {
        "what": "kv_roads",
        "profile": profile,
        **run_record(
            {
                "profile": dataclasses.asdict(settings),
                "roads": {name: dataclasses.asdict(r) for name, r in chosen.items()},
            },
            seed=seeds[0],
            command=command,
        ),
        "seeds": list(seeds),
        **figures({name: [arm["answers"] for arm in by_seed] for name, by_seed in arms.items()}),
        "parameters": {name: by_seed[0]["parameters"] for name, by_seed in arms.items()},
        "seconds": {name: [arm["seconds"] for arm in by_seed] for name, by_seed in arms.items()},
    }


def _chosen(names: Sequence[str] | None) -> dict[str, Road]:
    for name in names or ():
        if name not in ROADS:
            raise ConfigurationError(f"There is no road '{name}'; there are {list(ROADS)}.{nearest(name, ROADS)}")
    return {name: road for name, road in ROADS.items() if names is None or name in (DEFAULT, *names)}


def _arm(
    name: str,
    road: Road,
    settings: Profile,
    task: Task,
    seed: int,
    members: Sequence[GPT2LMHeadModel],
    stages: Stages,
    stamp: str,
) -> dict[str, Any]:
    """One road with one seed: its answers, how many parameters were trained, and the seconds that took."""
    anchor, augmenting = reversed(members) if road.swapped else members

    def make(report: Report) -> tuple[CalmForCausalLM, dict[str, Any]]:
        model = compose_members(task, anchor, augmenting, settings.composition, seed, **road.options)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        seconds, curve = train_composition(model, task, settings.composition, seed, report)
        return model, {"seconds": seconds, "parameters": trained, "curve": curve}

    def load(folder: Path) -> CalmForCausalLM:
        return CalmForCausalLM.from_pretrained(folder, anchor=anchor, augmenting=augmenting)

    model, notes = stages.made(name, f"seed {seed}, {road.title}: train", stamp, make, load)

    def answer(report: Report) -> dict[str, list[int]]:
        return answers_of(model, task, settings.tested, task.split[1], report)

    answers = stages.kept(f"{name}-answers", f"seed {seed}, {road.title}: test", stamp, answer)
    cast(CalmForCausalLM, model).detach()
    return {"answers": answers, "parameters": notes["parameters"], "seconds": notes["seconds"]}


def write_report(result: dict[str, Any], path: Path, page: Path | None = None) -> list[Path]:
    """Write `path` (JSON), beside it the same as Markdown and as a figure, and into the marked part of `page`."""
    places = write_files(result, path, roads_markdown(result), roads_figure)
    if page is None:
        return places
    write_text_atomic(page, with_section(page.read_text(encoding="utf-8"), result))
    return [*places, page]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roads", nargs="+", metavar="ROAD", help=f"some of {', '.join(ROADS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of bridges and composition data")
    parser.add_argument("--steps", type=int, help="fewer steps than the profile has, for a try")
    parser.add_argument("--models", type=Path, default=Path("runs/kv_arithmetic/roads"), help="where models are kept")
    parser.add_argument("--output", type=Path, default=Path("results/kv_arithmetic/roads.json"))
    parser.add_argument("--page", type=Path, help="a page whose marked part is written anew, such as docs/roads.md")
    options = parser.parse_args()
    command = command_of("kv_arithmetic.roads", sys.argv[1:])
    result = carry_out(
        "roads",
        command,
        lambda: run(
            roads=options.roads, seeds=options.seeds, steps=options.steps, folder=options.models, command=command
        ),
    )
    conclude(roads_grids(result), write_report(result, options.output, options.page))


if __name__ == "__main__":
    main()
