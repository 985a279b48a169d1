"""What the command line says of a comparison, put over what the recipe says."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lmcompose.errors import ConfigurationError
from lmcompose.training.recipe import Ablations, Kind


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser; each is of the recipe's section `ablations` too."""
    kinds = ", ".join(get_args(Kind))
    group = parser.add_argument_group("what it is compared with (or: ablations in the recipe)")
    group.add_argument(
        "--vanilla",
        nargs="+",
        metavar="[NAME=]MODEL",
        help="what the augmenting model was before its domain training",
    )
    group.add_argument(
        "--domain-data", nargs="+", metavar="FILE[:kind]", help=f"all of the domain data; kind: {kinds} (default text)"
    )
    group.add_argument("--domain-epochs", type=float, metavar="N", help="passes over the domain data (default 1)")
    group.add_argument(
        "--forgetting", nargs="+", metavar="FILE[:kind]", help="held-out data of what the anchor could do before"
    )
    group.add_argument("--weight", type=float, help="share of the augmenting models in ensemble and average")
    group.add_argument("--scale", type=float, help="of task arithmetic (default 1)")
    group.add_argument("--alpha", type=float, help="of proxy-tuning (default 1)")
    group.add_argument(
        "--learning-rate", nargs="+", metavar="ARM=RATE", help="that an arm is trained with, in place of the recipe's"
    )
    group.add_argument("--template", help="the pipeline's prompt, with {answer} and {prompt} in it")
    group.add_argument("--answer-tokens", type=int, metavar="N", help="of the pipeline's answers, at most (default 64)")


def options_given(given: argparse.Namespace, recipe: Ablations | None) -> Ablations:
    """The recipe's options, and over them those of the command line, whose paths start from where one stands.

    Raises:
        ConfigurationError: a value that cannot be.
    """
    values: dict[str, Any] = recipe.model_dump(exclude_unset=True) if recipe is not None else {}
    said = {
        "vanilla": _models(given.vanilla),
        "domain_data": _sources(given.domain_data),
        "domain_epochs": given.domain_epochs,
        "forgetting": _sources(given.forgetting),
        "weight": given.weight,
        "scale": given.scale,
        "alpha": given.alpha,
        "learning_rates": _pairs("--learning-rate", given.learning_rate),
    }
    values |= {key: value for key, value in said.items() if value is not None}
    pipeline = {"template": given.template, "new_tokens": given.answer_tokens}
    values["pipeline"] = values.get("pipeline", {}) | {k: v for k, v in pipeline.items() if v is not None}
    try:
        return Ablations.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{where}: {problem['msg'].removeprefix('Value error, ')}.") from error


def _models(given: Sequence[str] | None) -> str | dict[str, str] | None:
    if given is None:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return _from_here(given[0])
    return {name: _from_here(place) for name, place in (_pairs("--vanilla", given) or {}).items()}


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    for each in given:
        if "=" not in each:
            raise ConfigurationError(f"{option} {each}: write it as name=value.")
    return dict(each.split("=", 1) for each in given)


def _sources(given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    if given is None:
        return None
    sources = []
    for each in given:
        path, _, kind = each.rpartition(":")
        if kind not in get_args(Kind):
            path, kind = each, "text"
        sources.append({"path": _from_here(path), "kind": kind})
    return sources


def _from_here(place: str) -> str:
    """What is there, by its whole path, since a recipe's paths start from the recipe; anything else as it is."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.exists() else place
