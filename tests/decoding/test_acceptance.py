"""Which drafted tokens are kept and what is emitted, by hand and by enumeration."""

from __future__ import annotations

import pytest
import torch

from lmcompose.decoding.acceptance import (
    accept_greedy,
    accept_sampled,
    emit_greedy,
    ended,
    lockstep,
    residual,
)
from lmcompose.errors import ConfigurationError
from tests.decoding.chances import p_value
from tests.decoding.rounds import emit_sampled
from tests.decoding.test_acceptance_law import PROMPTS, VOCAB, follow


def test_one_token_by_enumeration() -> None:
    """Over all drafted tokens and a fine grid of uniforms: accepted mass and residual mass add up to the target."""
    cases = [
        ([0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]),
        ([1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
        ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.3, 0.7]),  # no token in common
        ([0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]),
        ([0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]),
        ([0.2, 0.0, 0.8, 0.0], [0.9, 0.1, 0.0, 0.0]),
    ]
    steps = 4096
    uniforms = ((torch.arange(steps) + 0.5) / steps)[:, None]
    for target, drafter in cases:
        p, q = torch.tensor(target), torch.tensor(drafter)
        emitted = torch.zeros(VOCAB)
        for token in range(VOCAB):
            draft = torch.full((steps, 1), token)
            kept = accept_sampled(draft, q.expand(steps, 1, -1), p.expand(steps, 2, -1), uniforms).float().mean()
            emitted[token] += q[token] * kept
            emitted += q[token] * (1 - kept) * residual(p, q)
        torch.testing.assert_close(emitted, p, atol=1 / steps, rtol=0)
        assert not emitted[p == 0].any()


def test_acceptance_at_the_edges() -> None:
    def accepts(p: float, q: float, uniform: float) -> bool:
        drafter, target = (torch.tensor([[[value, 1 - value]]]) for value in (q, p))
        return bool(accept_sampled(torch.tensor([[0]]), drafter, target, torch.tensor([[uniform]])))

    highest = 1 - 2**-24
    assert accepts(0.3, 0.3, highest)
    assert accepts(0.6, 0.3, highest)
    assert accepts(0.3, 0.6, 0.499)
    assert not accepts(0.3, 0.6, 0.501)
    assert not accepts(0.0, 0.5, 0.0)  # a uniform of exactly 0 lets nothing through that the target rules out
    assert not accepts(0.0, 0.0, 0.0)
    assert accepts(1e-30, 0.0, highest)  # a token that the drafter itself rules out, as rounding may bring about


def test_the_first_refusal_ends_a_row() -> None:
    q = torch.full((1, 4, 2), 0.5)
    p = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]])
    assert accept_sampled(torch.zeros(1, 4, dtype=torch.long), q, p, torch.zeros(1, 4)).tolist() == [2]


def test_residual_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]]), torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.5, 0.0]])
    torch.testing.assert_close(residual(p, q), torch.tensor([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0]]))
    torch.testing.assert_close(residual(p, torch.zeros(2, 3)), p)


def test_an_empty_residual_is_the_target() -> None:
    p = torch.tensor([0.5, 0.5, 0.0])
    for q in (p, torch.tensor([0.5000001, 0.5, 1e-7])):  # rounding: p exceeds q nowhere
        assert torch.equal(residual(p, q), p)


def test_half_precision_is_widened() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]).bfloat16(), torch.tensor([0.2, 0.2, 0.6]).half()
    assert residual(p, q.bfloat16()).dtype == residual(p, q).dtype == torch.float32
    assert residual(p.double(), q).dtype == torch.float64
    draft, rows = torch.tensor([[0], [1]]), (2, 1, 3)
    emitted = emit_sampled(draft, q.expand(rows), p.expand(rows), generator=torch.Generator().manual_seed(0))
    assert emitted.kept == 1
    assert torch.equal(emitted.tokens, draft)


def test_without_a_token_in_common_all_comes_from_the_target() -> None:
    p, q = torch.tensor([0.25, 0.75, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.5, 0.5])
    rows = 8_000
    draft = torch.randint(2, 4, (rows, 2), generator=torch.Generator().manual_seed(0))
    emitted = emit_sampled(
        draft, q.expand(rows, 2, -1), p.expand(rows, 3, -1), generator=torch.Generator().manual_seed(1)
    )
    assert (emitted.kept, emitted.tokens.shape) == (0, (rows, 1))
    assert p_value([p.double()], [emitted.tokens[:, 0]]) > 0.001


def test_a_drafter_equal_to_the_target_is_always_accepted() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(64, 5, 50, generator=generator).softmax(-1)
    draft = torch.multinomial(probs[:, :4].flatten(0, 1), 1, generator=generator).view(64, 4)
    emitted = emit_sampled(draft, probs[:, :4], probs, generator=generator)
    assert emitted.kept == 4
    assert torch.equal(emitted.tokens[:, :4], draft)
    assert emit_sampled(draft, probs[:, :4], probs[:, :4], generator=generator).tokens.shape == (64, 4)


def test_what_each_row_emits_at_the_cut() -> None:
    """Tokens 0 and 1 are drafted; the target is sure of its tokens, so that the outcome is certain."""
    one_hot = torch.eye(4)
    draft = torch.tensor([[0, 1], [0, 1], [0, 1]])
    target = one_hot[torch.tensor([[0, 1, 2], [0, 3, 2], [2, 1, 3]])]
    probs = one_hot[draft]
    assert emit_sampled(draft[:1], probs[:1], target[:1]).tokens.tolist() == [[0, 1, 2]]
    assert emit_sampled(draft[:1], probs[:1], target[:1, :2]).tokens.tolist() == [[0, 1]]
    two = emit_sampled(draft[:2], probs[:2], target[:2])
    assert (two.tokens.tolist(), two.kept, two.accepted.tolist()) == ([[0, 1], [0, 3]], 1, [2, 1])
    three = emit_sampled(draft, probs, target)
    assert (three.tokens.tolist(), three.kept, three.accepted.tolist()) == ([[0], [0], [2]], 0, [2, 1, 0])
    plain = emit_sampled(draft[:, :0], probs[:, :0], target[:, :1])
    assert (plain.tokens.tolist(), plain.kept) == ([[0], [0], [2]], 0)


def test_finished_rows_hold_nobody_back_and_are_padded() -> None:
    one_hot = torch.eye(4)
    draft = torch.tensor([[0, 1], [0, 1]])
    target = one_hot[torch.tensor([[0, 1, 2], [2, 2, 2]])]
    target[1] = torch.nan
    finished = torch.tensor([False, True])
    for emitted in (
        emit_sampled(draft, one_hot[draft], target, finished=finished, pad_id=9),
        emit_greedy(draft, target, finished=finished, pad_id=9),
    ):
        assert (emitted.tokens.tolist(), emitted.kept) == ([[0, 1, 2], [9, 9, 9]], 2)
    with pytest.raises(RuntimeError, match="probability"):
        emit_sampled(draft, one_hot[draft], target)
    assert lockstep(torch.tensor([3, 1, 2]), torch.tensor([False, True, False])) == 2
    assert lockstep(torch.tensor([3, 1]), torch.tensor([True, True])) == 0


END = 3


def test_a_row_that_accepts_its_last_token_holds_nobody_back() -> None:
    one_hot = torch.eye(4)
    draft = torch.tensor([[1, END, 0], [0, 1, 2]])
    target = one_hot[torch.tensor([[1, END, 1, 1], [0, 1, 2, 0]])]  # row 0 is refused behind its end
    target[0, 3] = torch.nan
    ends = draft == END
    for emitted, without in (
        (emit_greedy(draft, target, ends=ends), emit_greedy(draft, target)),
        (emit_sampled(draft, one_hot[draft], target, ends=ends), emit_sampled(draft, one_hot[draft], target)),
    ):
        assert (emitted.kept, emitted.accepted.tolist()) == (3, [2, 3])
        assert emitted.tokens[1].tolist() == [0, 1, 2, 0]
        assert emitted.tokens[0, :2].tolist() == [1, END]
        assert without.kept == 2


def test_a_row_that_is_refused_before_its_last_token_does_hold_others_back() -> None:
    one_hot = torch.eye(4)
    draft = torch.tensor([[1, END, 0], [0, 1, 2]])
    target = one_hot[torch.tensor([[2, END, 0], [0, 1, 2]])]
    for emitted in (
        emit_greedy(draft, target, ends=draft == END),
        emit_sampled(draft, one_hot[draft], target, ends=draft == END),
    ):
        assert (emitted.kept, emitted.tokens.tolist()) == (0, [[2], [0]])


def test_when_all_rows_accept_their_last_token_the_whole_draft_is_kept() -> None:
    """To cut it shorter would make the cut hang on what was decided behind it."""
    draft = torch.tensor([[1, END, 0], [1, 2, END]])
    target = torch.eye(4)[torch.tensor([[1, END, 1], [1, 2, END]])]
    assert ended(torch.tensor([2, 3]), draft == END).tolist() == [True, True]
    assert ended(torch.tensor([1, 2]), draft == END).tolist() == [False, False]
    emitted = emit_greedy(draft, target, ends=draft == END)
    assert (emitted.kept, emitted.tokens[:, :2].tolist()) == (3, [[1, END], [1, 2]])
    assert emitted.tokens[1].tolist() == [1, 2, END]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("bonus", [True, False])
def test_greedy_texts_are_those_of_plain_decoding(batch: int, bonus: bool) -> None:
    generator = torch.Generator().manual_seed(batch)
    lengths = set()
    for _ in range(60):
        target, drafter = torch.randn(2, VOCAB * VOCAB, VOCAB, generator=generator)
        drafter = target + 0.7 * drafter
        states = PROMPTS[:batch, 0] * VOCAB + PROMPTS[:batch, 1]
        plain, state = [], states
        for _ in range(12):
            plain.append(target[state].argmax(-1))
            state = follow(state, plain[-1])
        texts = torch.empty(batch, 0, dtype=torch.long)
        while texts.shape[1] < 12:
            along, draft = [states], torch.empty(batch, 3, dtype=torch.long)
            for position in range(3):
                draft[:, position] = drafter[along[-1]].argmax(-1)
                along.append(follow(along[-1], draft[:, position]))
            emitted = emit_greedy(draft, target[torch.stack(along[: 3 + bonus], 1)])
            for token in emitted.tokens.T:
                states = follow(states, token)
            texts = torch.cat([texts, emitted.tokens], 1)
            lengths.add(emitted.tokens.shape[1])
        assert torch.equal(texts[:, :12], torch.stack(plain, 1))
    assert lengths == set(range(1, 4 + bonus))


def test_greedy_acceptance_by_hand() -> None:
    scores = torch.eye(4)[torch.tensor([[0, 1, 2], [0, 3, 2], [1, 1, 1]])] - 7
    draft = torch.tensor([[0, 1], [0, 1], [0, 1]])
    assert accept_greedy(draft, scores).tolist() == [2, 1, 0]
    assert emit_greedy(draft[:2], scores[:2]).tokens.tolist() == [[0, 1], [0, 3]]
    assert emit_greedy(draft[:, :0], scores[:, :1]).tokens.tolist() == [[0], [0], [1]]


@pytest.mark.parametrize(
    ("draft", "drafter", "target"),
    [((2, 2), (2, 2, 5), (2, 1, 5)), ((2, 2), (2, 2, 5), (2, 4, 5)), ((2, 2), (2, 1, 5), (2, 2, 5)),
     ((2, 2), (2, 2, 5), (1, 2, 5)), ((2, 2), (2, 2, 5), (2, 2, 6)), ((2, 0), (2, 0, 5), (2, 0, 5))],
)  # fmt: skip
def test_shapes_that_do_not_belong_together(draft: tuple, drafter: tuple, target: tuple) -> None:
    ids = torch.zeros(draft, dtype=torch.long)
    with pytest.raises(ConfigurationError, match="Score every drafted token once"):
        emit_sampled(ids, torch.full(drafter, 0.2), torch.full(target, 0.2))
