"""The arithmetic of logit composition: weighted sums of scores that hold -inf, and plausibility masks.

Everything here is a pure function on tensors [..., vocab]; this file knows no models, no tokenizers and no formulas.

With -inf among the scores a plain sum would give NaN or prefer a token because a member rules it out, so:

- a member of weight 0 is left out, whatever its scores hold;
- a token at -inf in a member of positive weight is at -inf in the sum, whatever the other members say;
- a token at -inf in a member of negative weight counts as that member's lowest finite score at that position.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmcompose.errors import ConfigurationError, nearest

MISSING_POLICIES = ("leader", "forbid", "lowest")
SCORES = ("logits", "logprobs")
PLAUSIBILITY_KINDS = ("ratio", "top_p", "top_k")

RULED_OUT = -6e4
"""Scores this low are -inf: some models write the lowest number of their dtype instead, in half precision -65504."""


class Step(NamedTuple):
    """One part of the sum: `weight * (plus - minus)`, or `weight * plus` where there is no minus."""

    weight: float
    plus: str
    minus: str | None = None


def combine(
    scores: Mapping[str, Tensor],
    coefficients: Mapping[str, float | Tensor],
    missing: Mapping[str, Tensor] | None = None,
    leader: str | None = None,
    policy: str = "leader",
) -> Tensor:
    """The weighted sum of the members' scores, in float32.

    A member that is subtracted is first taken from a member that is added, so that equal scores cancel exactly:
    base + alpha * (expert - antiexpert) is the base, bit for bit, where the expert equals the antiexpert, and with
    alpha = 1 it is the expert where the antiexpert equals the base (proxy-tuning, arXiv 2401.08565, equation 1).

    Args:
        scores: each member's scores [..., vocab], all of one shape and in the leader's token ids.
        coefficients: each member's weight: a number, or a tensor that broadcasts against [..., 1], such as one weight
            per row [batch, 1, 1]. Tensors are read on the host, so keep them on the CPU; each row is added up as if
            it were alone.
        missing: for members that lack some of the leader's tokens, where they do: bool [vocab].
        leader: the member whose tokens these are; by default the first of `coefficients`.
        policy: what becomes of a token that a member lacks, one of MISSING_POLICIES: "leader" takes the leader's
            weighted score alone (-inf if its weight is not positive), "forbid" -inf, "lowest" takes the member's
            lowest finite score at that position for it.

    Returns:
        [..., vocab] float32, without NaN or +inf as long as the scores hold neither. It can be a member's own tensor
        (where that is all that is left of the sum): do not write into it.

    Raises:
        ConfigurationError: all weights are 0 (in some row), or there is no such policy.
    """
    check_choice("policy", policy, MISSING_POLICIES)
    leader = next(iter(coefficients)) if leader is None else leader
    missing = missing or {}
    weights = {name: weight for name, weight in coefficients.items() if not isinstance(weight, Tensor)}
    if len(weights) == len(coefficients):
        return _combine(scores, weights, missing, leader, policy)
    shape = next(iter(scores.values())).shape
    table = torch.stack([_per_row(weight, shape) for weight in coefficients.values()], dim=-1)  # [rows, members]
    distinct, group_of_row = table.unique(dim=0, return_inverse=True)
    groups = [dict(zip(coefficients, values, strict=True)) for values in distinct.tolist()]
    if len(groups) == 1:
        return _combine(scores, groups[0], missing, leader, policy)
    flat = {name: score.reshape(-1, shape[-1]) for name, score in scores.items()}
    result = torch.empty_like(next(iter(flat.values())), dtype=torch.float32)
    for group, weights in enumerate(groups):
        rows = (group_of_row == group).nonzero().squeeze(-1).to(result.device)
        result[rows] = _combine({name: score[rows] for name, score in flat.items()}, weights, missing, leader, policy)
    return result.view(shape)


def _per_row(weight: float | Tensor, shape: torch.Size) -> Tensor:
    """A weight for each row of scores [..., vocab]: [rows] float64 on the CPU."""
    weight = torch.as_tensor(weight).detach().to("cpu", torch.float64)
    return weight.expand(*shape[:-1], 1).reshape(-1)


def _combine(
    scores: Mapping[str, Tensor],
    weights: Mapping[str, float],
    missing: Mapping[str, Tensor],
    leader: str,
    policy: str,
) -> Tensor:
    """`combine` where the weights are numbers."""
    lacking = [name for name in missing if weights.get(name, 0.0) != 0.0]
    # rounded here and not on the way, so that what is equal in float32 cancels; the smaller dtypes lose nothing by it
    prepared = {name: score.float() if score.dtype == torch.float64 else score for name, score in scores.items()}
    for name in lacking:
        if policy == "lowest" or weights[name] < 0:  # whatever stands there must not become the lowest score
            prepared[name] = prepared[name].masked_fill(missing[name], -torch.inf)
        if policy == "lowest":
            prepared[name] = torch.where(missing[name], lowest(prepared[name]), prepared[name])
    total = _weighted_sum(prepared, summation(weights, leader))
    if not lacking or policy == "lowest":
        return total
    absent = torch.stack([missing[name] for name in lacking]).any(dim=0)
    if policy == "leader" and weights.get(leader, 0.0) > 0:
        return torch.where(absent, scores[leader].float() * weights[leader], total)
    return total.masked_fill(absent, -torch.inf)


def summation(weights: Mapping[str, float], leader: str) -> list[Step]:
    """In which parts to add up a weighted sum, so that equal scores cancel exactly.

    Each member of negative weight -w is joined to a member of at least weight w that then keeps the rest of its
    weight: one of exactly w if there is, rather another than the leader; else the heaviest. So (1 + alpha) * a -
    alpha * b becomes a + alpha * (a - b). The differences come first, then the members that are left.

    >>> summation({"base": 1.0, "expert": 0.5, "antiexpert": -0.5}, "base")
    [Step(weight=0.5, plus='expert', minus='antiexpert'), Step(weight=1.0, plus='base', minus=None)]
    """
    left = {name: weight for name, weight in weights.items() if weight > 0}
    steps, alone = [], []
    for name, weight in weights.items():
        if weight >= 0:
            continue
        equal = [other for other, has in left.items() if _same(has, -weight)]
        heavier = [other for other, has in left.items() if has > -weight]
        if equal:
            partner = next((other for other in equal if other != leader), leader)
            del left[partner]
        elif heavier:
            partner = max(heavier, key=lambda other: left[other])
            left[partner] += weight
        else:
            alone.append(Step(weight, name))
            continue
        steps.append(Step(-weight, partner, name))
    return steps + [Step(weight, name) for name, weight in left.items()] + alone


def _same(left: float, right: float) -> bool:
    """Whether two positive weights differ by rounding alone."""
    return abs(left - right) <= 1e-9 * max(left, right)  # math.isclose would not compile


def _weighted_sum(scores: Mapping[str, Tensor], steps: Sequence[Step]) -> Tensor:
    """Add up `steps`. In place wherever a tensor is our own: the scores of a vocabulary are large."""
    total: Tensor | None = None
    steps = list(steps)
    while steps:
        step = steps.pop(0)
        plus = scores[step.plus]
        if step.minus is None:
            if step.weight < 0:
                plus = _without_ruled_out(plus)
            if total is None and not steps and step.weight == 1:
                return plus.float()
            total = plus.float() * step.weight if total is None else total.add_(plus, alpha=step.weight)
            continue
        minus = _without_ruled_out(scores[step.minus])
        # Here is base + w * (expert - antiexpert) with another member of weight w, such as the base where w = 1: the
        # antiexpert could be taken from either. Where it equals that other member, the two cancel and the expert is
        # left; anywhere else it is taken from the expert. No order of three additions gets both cases right.
        rival = next((other for other in steps if other.minus is None and _same(other.weight, step.weight)), None)
        cancels = None if rival is None else scores[rival.plus] == minus
        # minus - plus, and then the minus sign: so the difference of equal scores is -0.0, which leaves even the sign
        # of a zero alone when it is added.
        part = minus.sub_(plus).neg_()
        if rival is not None and cancels is not None:
            steps.remove(rival)
            part = torch.where(cancels, plus, part.add_(scores[rival.plus]))
        if step.weight != 1:
            part = part.mul_(step.weight)
        total = part if total is None else total.add_(part)
    if total is None:
        raise ConfigurationError("All weights are 0, so no token can be chosen. Give a member a positive weight.")
    return total


def _without_ruled_out(scores: Tensor) -> Tensor:
    """A copy of `scores` in float32, in which -inf is the lowest finite score of its position."""
    return scores.clamp(min=lowest(scores)).float()


def lowest(scores: Tensor) -> Tensor:
    """The lowest finite score of each position, [..., 1]; 0 where there is none, so that the member says nothing."""
    finite = F.threshold(scores.detach(), RULED_OUT, torch.inf).amin(dim=-1, keepdim=True)
    return torch.where(finite == torch.inf, 0.0, finite)


def at_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a member's own temperature, [..., vocab]; at temperature 1 the very same tensor.

    Raises:
        ConfigurationError: a temperature that is not a finite number above 0.
    """
    check_temperature(temperature)
    return logits if temperature == 1 else logits.float() / temperature


def check_temperature(temperature: float) -> None:
    """Refuse a temperature by which logits cannot be divided.

    Raises:
        ConfigurationError: it is not a finite number above 0.
    """
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 < temperature < math.inf:
        raise ConfigurationError(
            f"A member's temperature is a number above 0, not {temperature!r}. Use 1.0 to leave its scores as they are."
        )


def as_scores(logits: Tensor, kind: str) -> Tensor:
    """What is added up: the logits themselves, or their log-probabilities, [..., vocab].

    Raises:
        ConfigurationError: `kind` is not one of SCORES.
    """
    check_choice("scores", kind, SCORES)
    return logits if kind == "logits" else torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def check_choice(field: str, value: str, choices: Collection[str]) -> None:
    """Refuse a word that is not one of `choices`.

    Raises:
        ConfigurationError: it is not; the message names the nearest.
    """
    if value not in choices:
        raise ConfigurationError(
            f"{field} = {value!r} is none of {', '.join(map(repr, choices))}.{nearest(str(value), choices)}"
        )


@dataclass(frozen=True)
class Plausibility:
    """Which tokens one member finds plausible; all others are out of the question.

    Attributes:
        member: the member that decides.
        kind: "ratio" keeps tokens with p >= value * max p; "top_p" the most probable tokens that together reach the
            probability `value`; "top_k" the `value` most probable ones. Tokens that tie with the last one are kept.
        value: see `kind`.
    """

    member: str
    kind: str
    value: float

    def check(self, members: Collection[str]) -> None:
        """Check the fields against the members there are.

        Raises:
            ConfigurationError: an unknown member or kind, or a value outside its range.
        """
        if self.member not in members:
            raise ConfigurationError(
                f"The plausibility mask names '{self.member}', which is no member. The members: {', '.join(members)}."
                f"{nearest(str(self.member), members)}"
            )
        check_choice("kind of plausibility", self.kind, PLAUSIBILITY_KINDS)
        value = self.value
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "top_k":
            if not number or not 1 <= value < math.inf or value != int(value):
                raise ConfigurationError(f"top_k = {value!r}: give a whole number of tokens, 1 or more.")
        elif not number or not 0 < value <= 1:
            raise ConfigurationError(f"{self.kind} = {value!r}: give a number above 0 and at most 1.")


def plausible(scores: Tensor, kind: str, value: float, missing: Tensor | None = None) -> Tensor:
    """Which tokens a member with these scores finds plausible: bool [..., vocab].

    "ratio" is V_head of contrastive decoding (Li et al. 2022, arXiv 2210.15097, equation 2), on scores, where the
    sum of all probabilities cancels. "top_p" is the filter on the base in DExperts (Liu et al. 2021, arXiv 2105.03023).

    Args:
        scores: that member's logits or log-probabilities [..., vocab].
        kind, value: see `Plausibility`.
        missing: bool [vocab], the tokens that the member lacks; they are not plausible.
    """
    scores = scores.detach()
    if missing is not None:
        scores = scores.masked_fill(missing, -torch.inf)
    if kind == "top_p" and value == 1:  # rounding in the sum below would leave some out
        return scores > -torch.inf
    exact = torch.promote_types(scores.dtype, torch.float32)  # a threshold rounded below them would leave some out
    if kind == "ratio":
        least = scores.amax(dim=-1, keepdim=True).to(exact) + math.log(value)
    elif kind == "top_k":
        least = scores.topk(min(int(value), scores.shape[-1]), dim=-1).values[..., -1:]
    else:
        ordered = scores.to(exact).sort(dim=-1, descending=True).values
        probabilities = ordered.softmax(dim=-1)
        better = probabilities.cumsum(dim=-1) - probabilities  # of all tokens before it
        last = (better < value).sum(dim=-1, keepdim=True).clamp(min=1) - 1
        least = ordered.gather(-1, last)
    return scores >= least


def restrict(combined: Tensor, mask: Tensor) -> Tensor:
    """`combined` with -inf wherever `mask` is False, [..., vocab].

    A position where the combination rules out every plausible token is left as it is, without the mask: no position
    may be left without a token.
    """
    masked = torch.where(mask, combined, -torch.inf)
    return torch.where(masked.amax(dim=-1, keepdim=True) == -torch.inf, combined, masked)
