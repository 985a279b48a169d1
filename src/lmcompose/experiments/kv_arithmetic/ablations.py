"""The ablations of the key-value composition (CALM, table 5): `python -m` this module runs them.

On the task and the members of `lmcompose demo --profile ...`, which are taken from where that left them, every arm of
`arms` is trained beside the composition as in the paper. All answer the same expressions, over keys that no arm but the
skyline has seen, so that every difference is one between answers to the same questions. A seed is one of the table, the
members, the bridges and the data.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers.utils import logging

from lmcompose.card import run_record
from lmcompose.experiments.commands import carry_out, command_of, conclude, write_files
from lmcompose.experiments.kv_arithmetic.arms import ARMS, DEFAULT, SWEEPS, chosen, curves
from lmcompose.experiments.kv_arithmetic.differences import figures
from lmcompose.experiments.kv_arithmetic.profiles import profile_named
from lmcompose.experiments.kv_arithmetic.routing import skyline
from lmcompose.experiments.kv_arithmetic.run import READY_SEED, ready_members
from lmcompose.experiments.kv_arithmetic.seed_stages import SeedStages
from lmcompose.experiments.stages import stamp_of
from lmcompose.folders import write_text_atomic
from lmcompose.reporting.kv_ablation_plots import ablations_figure
from lmcompose.reporting.kv_ablation_tables import ablations_grids, ablations_markdown, with_section
from lmcompose.reporting.marked import around_marked

ALONE = {"augmenting": "m_A alone", "anchor": "m_B alone"}
"""What is tested and not trained here."""


def run(
    profile: str = "paper",
    arms: Sequence[str] | None = None,
    sweeps: Sequence[str] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    folder: Path | None = None,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and test the default, `arms` and the points of `sweeps`.

    Args:
        profile: a name in `PROFILES`.
        arms: names in `arms.ARMS`; all by default.
        sweeps: names in `arms.SWEEPS`; all by default.
        seeds: of tables, members, bridges and data.
        steps: train every arm for so many steps, in place of the profile's; the members stay as they are.
        folder: where `lmcompose demo` left its models, and where those of the arms are kept;
            `runs/kv_arithmetic/<profile>` by default. What is there and was made by the same settings is taken.
        command: what to record as the command.
        console: where progress goes; stderr by default.

    Raises:
        ConfigurationError: there is no such profile, arm or sweep.
    """
    picked = chosen(arms, sweeps)
    settings = profile_named(profile)
    if steps is not None:
        settings = dataclasses.replace(settings, composition=dataclasses.replace(settings.composition, steps=steps))
    folder = folder or Path("runs") / "kv_arithmetic" / profile
    console = console or Console(stderr=True, highlight=False)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answers: dict[str, list[dict[str, list[int]]]] = {}
    notes: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        ready = ready_members() if profile == "demo" and seed == READY_SEED else None
        one = SeedStages.begun(settings, seed, folder, ready, steps is not None, console)
        for name, model in (("augmenting", one.augmenting), ("anchor", one.anchor)):
            answers.setdefault(name, []).append(
                one.answers(name, f"seed {seed}, {ALONE[name]}", model, stamp_of("alone"))
            )
        for name, arm in picked.items():
            found, noted = one.arm(name, arm)
            answers.setdefault(name, []).append(found)
            notes.setdefault(name, []).append(noted)
    return {
        "what": "kv_ablations",
        "profile": profile,
        **run_record(
            {
                "profile": dataclasses.asdict(settings),
                "arms": {name: by_seed[0]["arm"] for name, by_seed in notes.items()},
            },
            seed=seeds[0],
            command=command,
        ),
        "seeds": list(seeds),
        "titles": {
            "augmenting": "m_A alone",
            "anchor": "m_B alone",
            **{name: arm.title for name, arm in picked.items()},
        },
        "ladder": [*ALONE, *(name for name in picked if name in ARMS)],
        "curves": curves(list(picked)),
        **figures(answers, DEFAULT),
        "routing": skyline(answers["augmenting"], answers["anchor"], answers[DEFAULT]),
        "parameters": {name: by_seed[0]["parameters"] for name, by_seed in notes.items()},
        "seconds": {name: [each["seconds"] for each in by_seed] for name, by_seed in notes.items()},
    }


def write_report(result: dict[str, Any], path: Path, page: Path | None = None) -> list[Path]:
    """Write `path` (JSON), beside it the same as Markdown and as a figure, and into the marked part of `page`."""
    places = write_files(result, path, ablations_markdown(result), ablations_figure)
    if page is None:
        return places
    write_text_atomic(page, with_section(page.read_text(encoding="utf-8"), result, places[2].name))
    return [*places, page]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profile",
        default="paper",
        help="the size: paper, demo, or in words paper-natural",
    )
    parser.add_argument("--arms", nargs="*", metavar="ARM", help=f"some of {', '.join(ARMS)}; all by default")
    parser.add_argument("--sweeps", nargs="*", metavar="SWEEP", help=f"some of {', '.join(SWEEPS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of tables, members, bridges and data")
    parser.add_argument("--steps", type=int, help="fewer steps than the profile has, for a try")
    parser.add_argument("--models", type=Path, help="where `lmcompose demo` left its models, and where arms are kept")
    parser.add_argument("--output", type=Path, default=Path("results/kv_arithmetic/ablations.json"))
    parser.add_argument("--page", type=Path, help="a page whose marked part is written, as docs/kv-ablations.md")
    options = parser.parse_args()
    command = command_of("kv_arithmetic.ablations", sys.argv[1:])

    def measured() -> dict[str, Any]:
        if options.page is not None:
            around_marked(options.page.read_text(encoding="utf-8"))  # before hours of training
        return run(
            options.profile,
            options.arms,
            options.sweeps,
            seeds=options.seeds,
            steps=options.steps,
            folder=options.models,
            command=command,
        )

    result = carry_out("ablations", command, measured)
    conclude(ablations_grids(result), write_report(result, options.output, options.page))


if __name__ == "__main__":
    main()
