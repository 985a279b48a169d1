"""How a draft is written: by a model, token by token; by looking tokens up; or by a model that looks up what to read.

A model that drafts is itself decoded speculatively, with guesses that cost no pass (`lookup`): where it would have
written them itself it reads several tokens at once, and else what it writes is distributed as it would have been.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from lmcompose.decoding.acceptance import accept_greedy, accept_sampled, emit_accepted, emit_greedy
from lmcompose.decoding.lookup import Guess, Lookup
from lmcompose.decoding.pace import Round
from lmcompose.decoding.texts import Texts

Process = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits processors: ids [B, n] and scores [B, V] of the next token to the final scores [B, V]."""


class Drafter(Protocol):
    """A model that drafts: see `speculative.Target`."""

    @property
    def takes_guesses(self) -> bool:
        """Whether it may read tokens in vain and forget them, while its draft goes on."""

    def draft_scores(self, ids: torch.Tensor, count: int = 1) -> torch.Tensor:
        """Scores [B, count, V] after each of the last columns of `ids`."""

    def crop_draft(self, columns: int) -> None:
        """Let the drafter forget what it read after so many columns."""


class Draft(NamedTuple):
    """What is to be judged.

    Attributes:
        tokens: [B, k].
        probs: [B, k, V] the distributions that they were drawn from; [B, 0, 1] where nothing is sampled.
        passes: of the drafter.
        positions: that it read in these passes.
        guessed: how many tokens were looked up, over all unfinished rows; those that a drafter read.
        right: how many of them their own row accepted.
        guess: what was looked up, where nothing but a guess is drafted, to learn from when it is judged; it may be
            longer than the draft.
    """

    tokens: torch.Tensor
    probs: torch.Tensor
    passes: int = 0
    positions: int = 0
    guessed: int = 0
    right: int = 0
    guess: Guess | None = None


def no_draft(texts: Texts) -> Draft:
    """Nothing, for a plain step."""
    tokens = texts.ids[:, :0]
    return Draft(tokens, torch.zeros(len(tokens), 0, 1, device=tokens.device))


def draft_by_model(
    drafter: Drafter,
    texts: Texts,
    plan: Round,
    process: Process,
    do_sample: bool,
    lookup: Lookup | None = None,
    position: float = 0.07,
) -> Draft:
    """What a model writes after `texts`, as long as the plan goes on.

    Args:
        lookup: where to look for tokens that the drafter may read several of at once; None for one at a time.
        position: what one more position costs relative to a pass of the drafter.
    """
    ids, probs = texts.ids, []
    passes = positions = guessed = right = 0
    while plan.goes_on(drafted := ids.shape[1] - texts.length):
        guess, sizes = ids[:, :0], []
        if lookup is not None and drafter.takes_guesses:
            found = lookup.guess(ids, max(1, plan.limit - drafted - 1), texts.padded)
            sizes = found.sizes
            known, guess = found.tokens, found.tokens
            most = min(guess.shape[1], plan.limit - drafted - 1)
            guess = guess[:, : lookup.worth(sizes, position, most)]
        read = torch.cat([ids, guess], dim=1)
        logits = drafter.draft_scores(read, guess.shape[1] + 1)
        scores = final_scores(process, read, logits)
        if do_sample:
            law = drafter_probs(scores)
            one_hot = functional.one_hot(guess, law.shape[-1]).to(law.dtype)
            accepted = accept_sampled(guess, one_hot, law, torch.rand(guess.shape, device=guess.device))
            emitted = emit_accepted(
                guess, one_hot, law, accepted, ends=texts.ends(guess), finished=texts.padded, pad_id=texts.pad_id
            )
        else:
            law = scores
            accepted = accept_greedy(guess, scores)
            emitted = emit_greedy(guess, scores, ends=texts.ends(guess), finished=texts.padded, pad_id=texts.pad_id)
        tokens = emitted.tokens
        count = tokens.shape[1]
        passes, positions = passes + 1, positions + read.shape[1] - ids.shape[1] + 1
        if sizes and lookup is not None:
            # a guess that was not read shows for its first token whether it would have been right
            first = accepted if guess.shape[1] else (known[:, 0] == tokens[:, 0]).long()
            kept = open_rows(first, texts.padded)
            lookup.observe(sizes, kept, max(1, guess.shape[1]))
            guessed += guess.shape[1] * len(kept)
            right += sum(kept) if guess.shape[1] else 0
        ids = torch.cat([ids, tokens], dim=1)
        if count <= guess.shape[1]:
            drafter.crop_draft(ids.shape[1] - 1)
        if do_sample:
            probs.append(law[:, :count])
        plan.drafted(_sure(law if do_sample else scores[:, :count].softmax(-1), tokens, texts.padded))
    draft = ids[:, texts.length :]
    chances = torch.cat(probs, dim=1) if probs else no_draft(texts).probs
    return Draft(draft, chances, passes, positions, guessed, right)


def draft_by_lookup(
    texts: Texts, lookup: Lookup, room: int, position: float, vocabulary: int, do_sample: bool
) -> Draft:
    """What followed the last tokens before, as much of it as pays where every token costs a position of all members.

    Args:
        room: how many tokens may be drafted at most.
        position: what one more position costs relative to a pass of all members.
        vocabulary: how many tokens there are.
    """
    found = lookup.guess(texts.ids, room, texts.padded)
    count = lookup.pays(found.sizes, position, found.tokens.shape[1])
    tokens = found.tokens[:, :count]
    probs = functional.one_hot(tokens, vocabulary).float() if do_sample else no_draft(texts).probs
    return Draft(tokens, probs, guessed=count * len(found.sizes), guess=found)


def open_rows(values: torch.Tensor, padded: torch.Tensor | None) -> list[int]:
    """The values [B] of the rows that still write."""
    listed: list[int] = (values if padded is None else values[~padded]).tolist()
    return listed


def final_scores(process: Process, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Final scores [B, k, V] in float32 after each of the last k columns of `ids`, each for its own prefix.

    Of a copy, since processors may write into what they are given.
    """
    count = logits.shape[1]
    prefixes = [ids[:, : ids.shape[1] - count + 1 + at].contiguous() for at in range(count)]
    return torch.stack(
        [process(prefix, logits[:, at].to(ids.device, torch.float32, copy=True)) for at, prefix in enumerate(prefixes)],
        dim=1,
    )


def drafter_probs(scores: torch.Tensor) -> torch.Tensor:
    """The drafter's distribution [..., V]; where processors leave it no token, all are as good as any.

    A drafter that lacks all tokens that are allowed must not stop a target that has them.
    """
    probs = scores.softmax(dim=-1)
    return torch.where(probs.isnan().any(dim=-1, keepdim=True), 1.0 / scores.shape[-1], probs)


def _sure(probs: torch.Tensor, tokens: torch.Tensor, padded: torch.Tensor | None) -> list[list[float]]:
    """How probable each token [B, k] was to its drafter, by position and unfinished row."""
    chances = probs[:, : tokens.shape[1]].gather(-1, tokens[..., None]).squeeze(-1).nan_to_num(0.0)
    rows: list[list[float]] = (chances if padded is None else chances[~padded]).t().tolist()
    return rows
