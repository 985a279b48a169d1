"""Which drafted tokens a target keeps, and what follows them.

Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) leaves the target's distribution as it is, whatever the
drafter. The target here is the final one: probabilities after temperature, masks and logits processors, which may hold
exact zeros. Tensors and numbers in, tensors and numbers out: this file knows no model, cache, formula or tokenizer.
"""

from typing import NamedTuple

import torch

from lmcompose.errors import ConfigurationError


class Emitted(NamedTuple):
    """What one round adds to a batch.

    Attributes:
        tokens: [B, kept + 1], or [B, kept] when the whole draft was kept and the target was not scored after it. What
            stands after a token that ended its row means nothing.
        kept: how many drafted tokens come before the cut, the same in all rows.
        accepted: [B] how many drafted tokens each row accepted on its own; what exceeds the cut is thrown away.
    """

    tokens: torch.Tensor
    kept: int
    accepted: torch.Tensor


def accept_greedy(draft: torch.Tensor, target_scores: torch.Tensor) -> torch.Tensor:
    """How many drafted tokens each row would have chosen itself.

    Args:
        draft: [B, k].
        target_scores: [B, k or k + 1, V] the target's final scores (or probabilities) for each drafted token.

    Returns:
        [B], from 0 to k.
    """
    return _leading(draft == target_scores[:, : draft.shape[1]].argmax(dim=-1))


def accept_sampled(
    draft: torch.Tensor, draft_probs: torch.Tensor, target_probs: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """How many drafted tokens each row accepts: token x with probability min(1, p(x) / q(x)), up to the first refusal.

    Leviathan et al. 2023, section 2.3, written as u q(x) < p(x): nothing is divided by zero, a token with p(x) = 0 is
    never accepted, and one with p(x) >= q(x) always is.

    Args:
        draft: [B, k], drawn from `draft_probs` (from a greedy drafter: one-hot rows).
        draft_probs: [B, k, V] the drafter's distribution q for each drafted token.
        target_probs: [B, k or k + 1, V] the target's final distribution p for each of them.
        uniforms: [B, k] in [0, 1), independent of the draft. Their step (2**-24 in float32) limits the exactness.

    Returns:
        [B], from 0 to k.

    Raises:
        ConfigurationError: the shapes do not belong together.
    """
    _check_shapes(draft, target_probs, draft_probs)
    chosen = draft[..., None]
    q = draft_probs.gather(-1, chosen).squeeze(-1)
    p = target_probs[:, : draft.shape[1]].gather(-1, chosen).squeeze(-1)
    return _leading(uniforms * q < p)


def residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """The distribution of the token that replaces a refused one: max(0, p - q), normalised; [..., V], float32 or wider.

    Leviathan et al. 2023, section 2.3. Where p exceeds q nowhere, which only rounding can bring about, it is p
    itself. Either way it holds no token that p rules out.

    Args:
        target: [..., V] p.
        draft: [..., V] q, for the same positions.
    """
    wide = torch.promote_types(torch.promote_types(target.dtype, draft.dtype), torch.float32)
    target = target.to(wide)
    excess = (target - draft.to(wide)).clamp(min=0)
    total = excess.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, excess / total, target)


def ended(accepted: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Which rows accepted a token that ends them, [B] bool. Such a row may hold no other back.

    Exact for the reason of `lockstep`: whatever is decided behind its last token, a row emits nothing there.

    Args:
        accepted: [B].
        ends: [B, k] bool, the drafted tokens that end their row.
    """
    return (ends & (torch.arange(ends.shape[1], device=ends.device) < accepted[:, None])).any(dim=1)


def lockstep(accepted: torch.Tensor, finished: torch.Tensor | None = None) -> int:
    """How many drafted tokens all rows keep: the smallest count among unfinished rows; 0 when all are finished.

    Exact, because whether position j is reached depends on decisions before j alone: at every position that is
    emitted, a row emits what it would have emitted by itself, the accepted token or its replacement. The cut itself
    must be emitted too. To drop it and draft that position anew would keep only tokens that were accepted there.

    Args:
        accepted: [B].
        finished: [B] bool, rows that write no more.
    """
    if finished is not None:
        accepted = accepted[~finished]
    return int(accepted.min()) if accepted.numel() else 0


def emit_greedy(
    draft: torch.Tensor,
    target_scores: torch.Tensor,
    *,
    ends: torch.Tensor | None = None,
    finished: torch.Tensor | None = None,
    pad_id: int = 0,
) -> Emitted:
    """One round for a batch in lockstep: the tokens that plain greedy decoding would choose from these scores.

    Args:
        draft: [B, k]; k = 0 is a plain step.
        target_scores: [B, k or k + 1, V] the target's final scores; the last of k + 1 is for the token after the draft.
        ends: [B, k] bool, the drafted tokens that end their row: a row that accepts one holds no other row back.
        finished: [B] bool, rows that write no more: they get `pad_id` and hold no other row back.
        pad_id: the token of finished rows.

    Raises:
        ConfigurationError: the shapes do not belong together.
    """
    _check_shapes(draft, target_scores)
    accepted = accept_greedy(draft, target_scores)
    kept = lockstep(reach(accepted, ends), finished)
    # empty after a fully kept draft without scores for one more token; a row that accepted more agrees with its draft
    last = target_scores[:, kept : kept + 1].argmax(dim=-1)
    return Emitted(_padded(torch.cat([draft[:, :kept], last], dim=1), finished, pad_id), kept, accepted)


def emit_accepted(
    draft: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    accepted: torch.Tensor,
    *,
    generator: torch.Generator | None = None,
    ends: torch.Tensor | None = None,
    finished: torch.Tensor | None = None,
    pad_id: int = 0,
) -> Emitted:
    """One round for a batch in lockstep: tokens distributed as if each row had been sampled from the target alone.

    All rows keep the same number m of drafted tokens (`lockstep`). At the cut, a row that was refused there draws from
    its residual, a row that accepted more emits its accepted token, and when every row accepted the whole draft each
    draws one more token from the target, where that was scored.

    Args:
        draft: [B, k], drawn from `draft_probs` for this round: what was thrown away before must not come back. k = 0
            is a plain step.
        draft_probs: [B, k, V] the drafter's distributions.
        target_probs: [B, k or k + 1, V] the target's final distributions; the last of k + 1 is for the token after the
            draft.
        accepted: [B] how many tokens each row accepted, by `accept_sampled`.
        generator: on the device of the probabilities; torch's own by default.
        ends: [B, k] bool, the drafted tokens that end their row: a row that accepts one holds no other row back.
        finished: [B] bool, rows that write no more: they get `pad_id`, hold no other row back, and may hold NaN.
        pad_id: the token of finished rows.

    Raises:
        ConfigurationError: the shapes do not belong together.
        RuntimeError: (torch) an unfinished row has NaN or nothing but zeros for probabilities, as in plain sampling.
    """
    _check_shapes(draft, target_probs, draft_probs)
    length = draft.shape[1]
    kept = lockstep(reach(accepted, ends), finished)
    tokens = draft[:, :kept]
    if kept < target_probs.shape[1]:
        weights = target_probs[:, kept]
        if kept < length:
            weights = residual(weights, draft_probs[:, kept])
        for idle in (finished, None if ends is None else ended(accepted, ends)):
            if idle is not None:
                weights = weights.masked_fill(idle[:, None], 1.0)  # drawn for the shape only, and never emitted
        last = torch.multinomial(weights, 1, generator=generator)
        if kept < length:
            last = torch.where((accepted > kept)[:, None], draft[:, kept : kept + 1], last)
        tokens = torch.cat([tokens, last], dim=1)
    return Emitted(_padded(tokens, finished, pad_id), kept, accepted)


def reach(accepted: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    """[B] how many drafted tokens each row lets the others keep: all, where it accepted one that ends it.

    Args:
        accepted: [B].
        ends: [B, k] bool, the drafted tokens that end their row.
    """
    return accepted if ends is None else accepted.masked_fill(ended(accepted, ends), ends.shape[1])


def _leading(passed: torch.Tensor) -> torch.Tensor:
    """[B] how many True come before the first False of each row [B, k]."""
    return passed.long().cumprod(dim=1).sum(dim=1)


def _padded(tokens: torch.Tensor, finished: torch.Tensor | None, pad_id: int) -> torch.Tensor:
    return tokens if finished is None else tokens.masked_fill(finished[:, None], pad_id)


def _check_shapes(draft: torch.Tensor, target: torch.Tensor, draft_probs: torch.Tensor | None = None) -> None:
    """A target scored for too few positions would otherwise be broadcast, and sampled wrongly without a word."""
    rows, length = draft.shape
    fits = target.shape[0] == rows and target.shape[1] in (length, length + 1) and target.shape[1] > 0
    if draft_probs is not None:
        fits = fits and draft_probs.shape == (rows, length, target.shape[2])
    if not fits:
        drafter = "" if draft_probs is None else f", the drafter's {list(draft_probs.shape)}"
        raise ConfigurationError(
            f"The draft has shape {[rows, length]}, the target's scores {list(target.shape)}{drafter}. Score every "
            "drafted token once in each row, over one vocabulary, and with the target at most one token more."
        )
