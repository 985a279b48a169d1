"""What is kept of each position of a text that several models score: how likely the true token is, and who errs.

This file knows nothing of what is made of it in the end.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.scoring import (
    Scores,
    Tuned,
    common,
    composed_scores,
    divergence,
    leader_role,
    standing,
)
from lmcompose.evaluation.texts import continuation_ids, decode, piece, token_class

Text = str | tuple[str, str] | Sequence[int]
"""A text or its ids, scored from the second token on; or (prompt, completion), of which the completion is scored."""

COMPOSITION, TUNED, MEMBER = "composition", "tuned", "members."
"""How models are named in a comparison: a member by "members." and its role, since a role may be called "tuned"."""


@dataclass(frozen=True)
class Row:
    """What is kept of one position: everything by the name of a model, or of two."""

    text: int
    kind: str
    losses: dict[str, float]
    right: dict[str, bool]
    pairs: dict[tuple[str, str], tuple[float, float, bool]]
    """KL(first || second), KL(second || first), and whether both find the same token the likeliest."""


@dataclass
class Cases:
    """Positions at which one of base and composition is right and the other wrong: a count, and the clearest ones."""

    limit: int
    total: int = 0
    kept: list[tuple[float, int, dict[str, Any]]] = field(default_factory=list)

    def count(self, moved: float) -> bool:
        """Count a case; whether the composition moved the true token farther than in one of those that are kept."""
        self.total += 1
        return len(self.kept) < self.limit or (self.limit > 0 and moved > self.kept[0][0])

    def keep(self, moved: float, example: dict[str, Any]) -> None:
        """Keep the case that was counted last."""
        push = heapq.heappush if len(self.kept) < self.limit else heapq.heapreplace
        push(self.kept, (moved, -self.total, example))

    def examples(self) -> list[dict[str, Any]]:
        """Those that are kept, the farthest moved first."""
        return [example for *_, example in sorted(self.kept, key=lambda entry: entry[:2], reverse=True)]


def split(model: ComposedModel, text: Text, max_length: int | None) -> tuple[list[int], list[int]]:
    """The ids that are read first, and those that are scored."""
    tokenizer = model.tokenizer
    if not isinstance(text, str) and not (len(text) > 0 and isinstance(text[0], str)):
        whole = [int(token) for token in text]
        return whole[:1], whole[1:max_length]
    if tokenizer is None:
        raise ConfigurationError("The composition has no tokenizer. Give texts as token ids, or compose with one.")
    if isinstance(text, str):
        whole = list(tokenizer(text)["input_ids"])
        return whole[:1], whole[1:max_length]
    prompt, completion = cast(tuple[str, str], text)
    before = list(tokenizer(prompt)["input_ids"])
    if not before:
        raise DataError("A prompt is empty, so there is no token to go on from. Give the completion as a text alone.")
    ids = continuation_ids(tokenizer, prompt, before, completion)
    return before, ids[: None if max_length is None else max(0, max_length - len(before))]


def score_text(
    model: ComposedModel,
    tuned: Tuned | None,
    whole: list[int],
    keep: int,
    alpha: Any,
    parameters: Mapping[str, Any] | None,
) -> Scores:
    """The scores at the positions that predict the last `keep` tokens of `whole`."""
    read = torch.tensor([whole[:-1]], device=model.device)
    inputs = {"input_ids": read, "attention_mask": torch.ones_like(read)}
    scores = composed_scores(model, inputs, keep, alpha=alpha, parameters=parameters)
    if tuned is None:
        return scores
    return Scores(scores.members, scores.composition, tuned.scores(inputs, keep).to(model.device))


def rows_of(
    part: Scores, number: int, whole: list[int], start: int, model: ComposedModel, tuned: Tuned | None
) -> list[Row]:
    """The rows of the positions that predict `whole` from `start` on."""
    named = by_name(part)
    true = torch.tensor(whole[start : start + len(part.composition)], device=part.composition.device)
    losses = {name: (-standing(scores, true)[0]).tolist() for name, scores in named.items()}
    best = {name: scores.argmax(dim=-1) for name, scores in named.items()}
    right = {name: (likeliest == true).tolist() for name, likeliest in best.items()}
    pairs = {}
    for first, second in _pairs_of(list(named)):
        left, other = common(named[first], named[second], _missing(model, tuned, first, second, part))
        agreement = (best[first] == best[second]).tolist()
        pairs[first, second] = (divergence(left, other).tolist(), divergence(other, left).tolist(), agreement)
    return [
        Row(
            number,
            token_class(piece(model.tokenizer, whole[: start + at], token)),
            {name: values[at] for name, values in losses.items()},
            {name: values[at] for name, values in right.items()},
            {names: (kl[at], reverse[at], same[at]) for names, (kl, reverse, same) in pairs.items()},
        )
        for at, token in enumerate(true.tolist())
    ]


def by_name(part: Scores) -> dict[str, Tensor]:
    """The scores by the names of `Row`: the base first."""
    tuned = {} if part.tuned is None else {TUNED: part.tuned}
    members = {MEMBER + role: scores for role, scores in part.members.items()}
    return {**members, COMPOSITION: part.composition, **tuned}


def _pairs_of(names: list[str]) -> list[tuple[str, str]]:
    base, *others = [name for name in names if name.startswith(MEMBER)]
    tuned = [(TUNED, COMPOSITION), (TUNED, base)] if TUNED in names else []
    return [*tuned, (COMPOSITION, base), *((base, other) for other in others)]


def _missing(model: ComposedModel, tuned: Tuned | None, first: str, second: str, part: Scores) -> Tensor | None:
    """The tokens that one of the two does not have: of the leader's, the tuned model or a member may lack some."""
    device = part.composition.device
    if tuned is not None and first == TUNED:
        return tuned.vocabulary.missing_on(device)
    role = second.removeprefix(MEMBER)
    vocabulary = getattr(model, "vocabularies", {}).get(role)
    return vocabulary.missing_on(device) if vocabulary is not None else None


def collect(
    cases: dict[str, Cases],
    rows: list[Row],
    part: Scores,
    whole: list[int],
    start: int,
    model: ComposedModel,
    context: int,
) -> None:
    """Add the rows where one of base and composition is right and the other wrong."""
    base = MEMBER + leader_role(model)
    for at, row in enumerate(rows):
        if row.right[base] == row.right[COMPOSITION]:
            continue
        kind = cases["base_only" if row.right[base] else "composition_only"]
        moved = abs(row.losses[base] - row.losses[COMPOSITION])
        if kind.count(moved):
            kind.keep(moved, _example(part, row, at, whole[: start + at + 1], model, context))


def _example(part: Scores, row: Row, at: int, until: list[int], model: ComposedModel, context: int) -> dict[str, Any]:
    *before, token = until
    choices = {}
    for name, scores in by_name(part).items():
        chance, choice = scores[at].max(dim=-1)
        choices[name] = {
            "text": piece(model.tokenizer, before, int(choice)),
            "probability": math.exp(float(chance)),
            "of_true": math.exp(-row.losses[name]),
        }
    return {
        "text": row.text,
        "position": len(before),
        "context": decode(model.tokenizer, before[-context:] if context else []),
        "true": piece(model.tokenizer, before, token),
        "class": row.kind,
        "choices": nested(choices),
    }


def nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same by role under "members", and under their own names for the other models."""
    members = {name.removeprefix(MEMBER): value for name, value in named.items() if name.startswith(MEMBER)}
    return {"members": members, **{name: value for name, value in named.items() if not name.startswith(MEMBER)}}
