"""Bits by document of every arm on every held-out set, each kept on disk as soon as it is there."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

from lmcompose.experiments.ablations.held_out import Documents
from lmcompose.experiments.ablations.setting import HELD_OUT
from lmcompose.experiments.ablations.untrained import Scorer
from lmcompose.experiments.stages import Report, Stages, stamp_of

Bits = dict[str, list[float]]
"""Set -> bits by document."""


class Scores:
    """Scores arms on the same documents.

    Args:
        sets: name -> documents, in tokens of the anchor.
    """

    def __init__(self, stages: Stages, sets: Mapping[str, Documents]) -> None:
        self.stages, self.sets = stages, sets
        self._prints = {name: fingerprint(documents) for name, documents in sets.items()}

    def of(self, place: str, label: str, make: Callable[[], Scorer], *settings: Any, but: Collection[str] = ()) -> Bits:
        """What an arm takes for each document of each set; models are loaded only where something is missing.

        Args:
            place: a folder inside that of the stages.
            label: what is scored, for the progress.
            make: loads what is scored.
            settings: all that decides what is scored; with others, what is on disk is not taken.
            but: sets that the arm cannot be scored on.
        """
        scorer = cache(make)

        def score(name: str, report: Report) -> list[float]:
            return scorer()(name, self.sets[name], report)

        found: Bits = {}
        for name in self.sets:
            if name not in but:
                stamp = stamp_of(*settings, self._prints[name])
                found[name] = list(
                    self.stages.kept(f"{place}/{_file(name)}", f"{name}: {label}", stamp, partial(score, name))
                )
        return found

    def keep(self, place: str, *settings: Any) -> Callable[[str, Callable[..., Any]], Any]:
        """Keeps something on the way to scores, by name; see `untrained.Keep`."""
        stamp = stamp_of(*settings, self._prints)

        def keep(name: str, make: Callable[..., Any]) -> Any:
            return self.stages.kept(f"{place}/{_slug(name)}", name, stamp, make)

        return keep


def fingerprint(documents: Documents) -> str:
    """Changes when any token of any document does, or what is asked for."""
    digest = hashlib.sha256()
    for document in documents:
        for example in document:
            digest.update(example.input_ids.tobytes())
            digest.update(example.labels.tobytes())
        digest.update(b"document")
    return digest.hexdigest()[:16]


def _file(name: str) -> str:
    return "scores" if name == HELD_OUT else f"scores-{_slug(name)}"


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
