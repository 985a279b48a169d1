"""Speculation leaves the target as it is: the law of whole texts, and wrong rules that the same test must catch.

The target is a toy that reads its prefix: a weighted sum of three or four members' scores, with a temperature, a
plausibility mask and a processor, so that it holds exact zeros. The drafter is one member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from lmcompose.decoding import acceptance
from lmcompose.decoding.acceptance import accept_sampled, emit_accepted, lockstep
from tests.decoding.chances import SURE, cells, p_value
from tests.decoding.rounds import emit_sampled

VOCAB, LENGTH = 4, 3
PROMPTS = torch.tensor([[0, 1], [3, 2], [2, 2]])  # of the rows of a batch
ROWS = 15_000
WEIGHTS = {3: (1.0, 1.0, -1.0), 4: (1.0, 1.2, -0.8, 0.5)}
SEEDS = {3: 2618, 4: 916}
"""Chosen so that drafter and target are far apart in every state, which the first test asserts."""


@dataclass
class Toy:
    """Distributions [states, VOCAB] by prefix; a state is the last two tokens."""

    target: torch.Tensor
    drafter: torch.Tensor
    base: torch.Tensor


def toy(terms: int) -> Toy:
    generator = torch.Generator().manual_seed(SEEDS[terms])
    scores = torch.randn(terms, VOCAB * VOCAB, VOCAB, generator=generator)
    base, expert = scores[0].softmax(-1), scores[1]
    combined = torch.einsum("t,tsv->sv", torch.tensor(WEIGHTS[terms]), scores) / 0.8  # a temperature
    combined = combined.masked_fill(base < 0.1 * base.amax(-1, keepdim=True), -torch.inf)  # plausibility
    if terms == 4:  # a processor (no token twice in a row), and a drafter that never tries its last choice
        combined[torch.arange(VOCAB * VOCAB), torch.arange(VOCAB * VOCAB) % VOCAB] = -torch.inf
        expert = expert.masked_fill(expert == expert.amin(-1, keepdim=True), -torch.inf)
    return Toy(combined.softmax(-1), expert.softmax(-1), base)


def follow(state: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return state % VOCAB * VOCAB + token


def law(table: torch.Tensor, prompt: torch.Tensor, length: int = LENGTH) -> torch.Tensor:
    """The exact probability of every text of `length` tokens after `prompt`, in the order of `chances.cells`."""
    texts = torch.tensor(list(product(range(VOCAB), repeat=length)))
    state, chance = (prompt[0] * VOCAB + prompt[1]).expand(len(texts)), torch.ones(len(texts), dtype=torch.float64)
    for position in range(length):
        chance = chance * table[state, texts[:, position]].double()
        state = follow(state, texts[:, position])
    return chance


@dataclass
class Round:
    """What a rule is given: all batches of the simulation at once, `batch` rows each, one after another."""

    draft: torch.Tensor
    draft_probs: torch.Tensor
    target_probs: torch.Tensor
    base_probs: torch.Tensor
    after_draft: torch.Tensor  # the drafter's distribution for the token after the draft
    batch: int
    generator: torch.Generator

    def accepted(self, target: torch.Tensor | None = None) -> torch.Tensor:
        uniforms = torch.rand(self.draft.shape, generator=self.generator)
        return accept_sampled(self.draft, self.draft_probs, self.target_probs if target is None else target, uniforms)

    def smallest(self, accepted: torch.Tensor) -> torch.Tensor:
        return accepted.view(-1, self.batch).amin(1).repeat_interleave(self.batch)

    def emit(self, accepted: torch.Tensor, target: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and how many: batches with one cut are handed to `emit_accepted` as a single one with that cut."""
        target = self.target_probs if target is None else target
        cut = self.smallest(accepted)
        tokens, counts = torch.zeros(len(cut), self.draft.shape[1] + 1, dtype=torch.long), torch.zeros_like(cut)
        for value in cut.unique().tolist():
            rows = cut == value
            emitted = emit_accepted(
                self.draft[rows], self.draft_probs[rows], target[rows], accepted[rows], generator=self.generator
            )
            counts[rows] = emitted.tokens.shape[1]
            tokens[rows, : emitted.tokens.shape[1]] = emitted.tokens
        return tokens, counts


Rule = Callable[[Round], tuple[torch.Tensor, torch.Tensor]]


def exact(round_: Round) -> tuple[torch.Tensor, torch.Tensor]:
    return round_.emit(round_.accepted())


def simulate(
    models: Toy, rule: Rule, batch: int, drafts: Sequence[int], bonus: bool = True, rows: int = ROWS, seed: int = 0
) -> torch.Tensor:
    """Texts [rows, LENGTH] after PROMPTS[row % batch], in rounds of `drafts` drafted tokens, over and over."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.zeros(rows, 2 + LENGTH + max(drafts) + 1, dtype=torch.long)
    texts[:, :2] = PROMPTS[torch.arange(rows) % batch]
    ends = torch.full((rows,), 2)
    round_number = 0
    while len(active := (ends < 2 + LENGTH).nonzero()[:, 0]):
        length = drafts[round_number % len(drafts)]
        states = [texts[active, ends[active] - 2] * VOCAB + texts[active, ends[active] - 1]]
        draft = torch.empty(len(active), length, dtype=torch.long)
        for position in range(length):
            probs = models.drafter[states[-1]]
            draft[:, position] = torch.multinomial(probs, 1, generator=generator)[:, 0]
            states.append(follow(states[-1], draft[:, position]))
        before = torch.stack(states[:length], 1) if length else torch.empty(len(active), 0, dtype=torch.long)
        scored = torch.stack(states[: length + bonus], 1)
        tokens, counts = rule(
            Round(
                draft, models.drafter[before], models.target[scored], models.base[scored], models.drafter[states[-1]],
                batch, generator,
            )
        )  # fmt: skip
        for position in range(tokens.shape[1]):
            writing = position < counts
            texts[active[writing], ends[active[writing]] + position] = tokens[writing, position]
        ends[active] += counts
        round_number += 1
    return texts[:, 2 : 2 + LENGTH]


def text_p_value(models: Toy, texts: torch.Tensor, batch: int, length: int = LENGTH) -> float:
    """Of the rows' texts, each against the law after its own prompt."""
    return p_value(
        [law(models.target, PROMPTS[row], length) for row in range(batch)],
        [cells(texts[row::batch, :length], VOCAB) for row in range(batch)],
    )


@pytest.mark.parametrize("terms", WEIGHTS)
def test_the_toys_put_acceptance_to_the_test(terms: int) -> None:
    models = toy(terms)
    distance = (models.target - models.drafter).abs().sum(-1) / 2  # total variation, [states]
    assert 0.3 <= float(distance.min()) <= float(distance.max()) < 0.8
    assert (models.target == 0).any()
    assert bool((models.drafter == 0).any()) == (terms == 4)
    assert float((models.target - models.base).abs().sum(-1).min()) / 2 > 0.05


@pytest.mark.parametrize("terms", WEIGHTS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("drafts", "bonus"), [((1,), True), ((3,), True), ((2, 3), False), ((2, 0, 3, 1), True)], ids=str
)
def test_texts_follow_the_law_of_the_target(terms: int, batch: int, drafts: tuple[int, ...], bonus: bool) -> None:
    models = toy(terms)
    texts = simulate(models, exact, batch, drafts, bonus)
    assert text_p_value(models, texts, batch) > 0.001
    if batch == 3:  # and rows know nothing of each other
        first, second = (law(models.target, PROMPTS[row], 2) for row in (0, 1))
        joint = torch.outer(first, second).flatten()
        pairs = cells(torch.cat([texts[0::3, :2], texts[1::3, :2]], 1), VOCAB)
        assert p_value([joint], [pairs]) > 0.001


def resample_target(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """A refused token is replaced by one of the target's rather than of the residual's."""
    monkeypatch.setattr(acceptance, "residual", lambda target, draft: target)
    return exact


def likelier_tokens(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Accepts just when q <= p and otherwise draws from the target: the rule without its coin."""
    monkeypatch.setattr(acceptance, "residual", lambda target, draft: target)

    def rule(round_: Round) -> tuple[torch.Tensor, torch.Tensor]:
        length = round_.draft.shape[1]
        q, p = (
            probs[:, :length].gather(-1, round_.draft[..., None])[..., 0]
            for probs in (round_.draft_probs, round_.target_probs)
        )
        return round_.emit((q <= p).long().cumprod(1).sum(1))

    return rule


def one_member(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Accepts by the base's distribution, not by the final one."""
    return lambda round_: round_.emit(round_.accepted(round_.base_probs))


def bonus_of_drafter(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Draws the token after a fully kept draft from the drafter."""

    def rule(round_: Round) -> tuple[torch.Tensor, torch.Tensor]:
        target = torch.cat([round_.target_probs[:, :-1], round_.after_draft[:, None]], dim=1)
        return round_.emit(round_.accepted(), target)

    return rule


def cut_without_its_token(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Emits accepted tokens only and drafts the refused position anew: whether it is emitted hangs on its own token."""
    monkeypatch.setattr(
        acceptance, "lockstep", lambda accepted, finished=None: max(lockstep(accepted, finished) - 1, 0)
    )
    return exact


def nothing_thrown_away(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Drafts the whole round anew when a row accepted more than the cut: whether a round counts hangs on what is
    beyond its cut."""

    def rule(round_: Round) -> tuple[torch.Tensor, torch.Tensor]:
        accepted = round_.accepted()
        tokens, counts = round_.emit(accepted)
        return tokens, counts * (round_.smallest(accepted) == -round_.smallest(-accepted))

    return rule


def replaces_accepted(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """All rows draw from their residuals at the cut, those that accepted more as well."""
    return lambda round_: round_.emit(round_.smallest(round_.accepted()))


Wrong = Callable[[pytest.MonkeyPatch], Rule]
# each with a draft length and batch sizes at which it shows; the last two are right for a single row
WRONG: list[tuple[Wrong, int, tuple[int, ...]]] = [
    (resample_target, 3, (1, 3)),
    (likelier_tokens, 3, (1, 3)),
    (one_member, 3, (1, 3)),
    (bonus_of_drafter, 1, (1, 3)),
    (cut_without_its_token, 3, (1,)),
    (nothing_thrown_away, 1, (3,)),
    (replaces_accepted, 3, (3,)),
]


@pytest.mark.parametrize("terms", WEIGHTS)
@pytest.mark.parametrize(
    ("wrong", "length", "batch"),
    [
        pytest.param(wrong, length, batch, id=f"{wrong.__name__}-{batch}")
        for wrong, length, batches in WRONG
        for batch in batches
    ],
)
def test_a_wrong_rule_is_caught(
    terms: int, wrong: Wrong, length: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = toy(terms)
    texts = simulate(models, wrong(monkeypatch), batch, (length,))
    assert text_p_value(models, texts, batch) < SURE


def one_by_one(round_: Round) -> tuple[torch.Tensor, torch.Tensor]:
    """The functions themselves, called for each batch."""
    tokens, counts = torch.zeros(len(round_.draft), round_.draft.shape[1] + 1, dtype=torch.long), []
    for start in range(0, len(round_.draft), round_.batch):
        rows = slice(start, start + round_.batch)
        emitted = emit_sampled(
            round_.draft[rows], round_.draft_probs[rows], round_.target_probs[rows], generator=round_.generator
        )
        tokens[rows, : emitted.tokens.shape[1]] = emitted.tokens
        counts += [emitted.tokens.shape[1]] * round_.batch
    return tokens, torch.tensor(counts)


def test_the_function_called_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    models = toy(3)
    assert text_p_value(models, simulate(models, one_by_one, 3, (2,), rows=1_200), 3, length=2) > 0.001
    resample_target(monkeypatch)  # and so few texts are enough to tell
    assert text_p_value(models, simulate(models, one_by_one, 3, (2,), rows=1_200), 3, length=2) < SURE
