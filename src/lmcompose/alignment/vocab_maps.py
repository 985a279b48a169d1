"""Maps between the token ids of two members of a logit composition: the leader's ids and a member's.

Tokens are matched by their strings, so two tokenizers of one kind fit together whatever order their ids have. What is
matched are tokens *with a row*: an id that the embedding table holds. The rules for the others:

- A leader's token that the member lacks (or has without a row) is missing: ``to_member`` is -1 there, ``missing`` is
  True, and ``member_scores`` gives it -inf. What the composition makes of it is the policy of ``logits/arithmetic.py``.
- A leader's row without a token is padding (Qwen2.5: 151,665 tokens under 151,936 or 152,064 rows). A GGUF file names
  its padding rows "[PAD151665]" and so on: these are no tokens either. The member is missing there too: nothing says
  what such a row means, and a difference of two untrained rows could prefer it. One exception: where both tables have
  equally many rows under identical vocabularies, rows are paired as they stand and nothing is missing, so that a
  composition which must equal one of its members equals it in every row.
- A member's token that the leader lacks can never be chosen and is left out.
- Read as input, a leader's token that the member lacks becomes the member's unknown token; where it has none, its end
  of text, its padding, its begin of text, else id 0.

What this file does not know: weights, formulas, and what happens to missing tokens. Tokenizers that spell tokens
differently (byte-level beside sentencepiece) share few strings and are refused here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

from lmcompose.alignment.vocabulary import PROBE, check_same_size
from lmcompose.errors import ConfigurationError, TokenizerMismatchError

MIN_COVERAGE = 0.95
"""The share of the leader's tokens that a member must have."""

KEPT_DIFFERENCES = 100
"""How many differences a map remembers in words. The counts are always complete."""

PROBE_TOKENS = 128
"""How many common tokens the second probe of the splitting is made of, spread evenly over the ids."""

ADVICE = "The members of a composition must read the same tokens; choose models of one family."


@dataclass(frozen=True)
class Differences:
    """How two vocabularies differ, counted in tokens that have a row.

    Attributes:
        tokens: how many the leader has.
        missing: of them, how many the member lacks.
        moved: of them, how many the member has under another id.
        extra: how many the member has that the leader lacks.
        sentences: the first ones in words: missing before moved before extra, each in the order of ids.
    """

    tokens: int
    missing: int = 0
    moved: int = 0
    extra: int = 0
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """The leader's ids in a member's. Made by `map_vocabulary`.

    Attributes:
        leader_name, member_name: for messages.
        to_member: the member's id of each of the leader's rows, -1 where the member lacks it: [leader_rows], int64.
        member_rows: how many ids the member scores.
        padding: the leader's rows that hold no token: bool [leader_rows]; None when there is none, or no tokenizer
            that could say so.
        stand_in: the member's id that is read for a token which it lacks.
        compared: how the vocabularies differ; None when they were not compared (no tokenizers).
    """

    leader_name: str
    member_name: str
    to_member: torch.Tensor
    member_rows: int
    padding: torch.Tensor | None
    stand_in: int
    compared: Differences | None
    missing: torch.Tensor | None = field(init=False)
    """True where the member lacks the leader's row: bool [leader_rows], on the CPU; None when it has them all."""
    _prefix: int | None = field(init=False)
    """When the leader's first rows are the member's and the others are missing: how many; None for another order."""
    _copies: dict[tuple[str, torch.device], torch.Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        missing = self.to_member < 0
        kept = self.leader_rows - int(missing.sum())
        in_place = torch.equal(self.to_member[:kept], torch.arange(kept, device="cpu"))
        object.__setattr__(self, "missing", missing if kept < self.leader_rows else None)
        object.__setattr__(self, "_prefix", kept if in_place else None)

    @property
    def leader_rows(self) -> int:
        """How many ids the leader scores."""
        return self.to_member.shape[0]

    @property
    def coverage(self) -> float:
        """The share of the leader's tokens that the member has; 1.0 when there were no tokenizers to compare."""
        found = self.compared
        return (found.tokens - found.missing) / found.tokens if found and found.tokens else 1.0

    @property
    def identical(self) -> bool:
        """Whether both have the same tokens under the same ids. Their numbers of rows may differ."""
        found = self.compared
        return found is None or not (found.missing or found.moved or found.extra)

    def member_scores(self, logits: torch.Tensor) -> torch.Tensor:
        """A member's scores in the leader's ids, -inf where `missing`. Differentiable.

        This runs at every decoded token. Identical vocabularies with equal rows give the very same tensor; where no
        id is moved, the first rows are sliced (a view) and padded with -inf for missing rows after them (one copy);
        only moved ids, or a hole among the ids, are gathered.

        Args:
            logits: [..., member_rows], on any device. Log-probabilities must be taken before, over all that the
                member knows.

        Returns:
            [..., leader_rows], same dtype and device.

        Raises:
            TokenizerMismatchError: the last dimension is not `member_rows`.
        """
        if logits.shape[-1] != self.member_rows:
            raise TokenizerMismatchError(
                f"'{self.member_name}' scored {logits.shape[-1]} token ids where {self.member_rows} were expected. "
                "Resize its embeddings before composing, not after."
            )
        if self._prefix is None:
            # On a CPU, gather with an expanded index took 0.5 ms for 4 rows of 151,936, where index_select took 30 ms.
            index = self._on("index", logits.device).expand(*logits.shape[:-1], -1)
            scores = logits.gather(-1, index)
            missing = self.missing_on(logits.device)
            return scores if missing is None else scores.masked_fill_(missing, float("-inf"))
        if self._prefix < self.member_rows:
            logits = logits[..., : self._prefix]
        if self._prefix < self.leader_rows:
            logits = F.pad(logits, (0, self.leader_rows - self._prefix), value=float("-inf"))
        return logits

    def member_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """The leader's ids as the member reads them; the same tensor when every id stays as it is.

        Args:
            ids: any shape, from 0 to leader_rows - 1.

        Returns:
            The same shape and dtype; `stand_in` for tokens that the member lacks.
        """
        if self.missing is None and self._prefix is not None:
            return ids
        return self._on("reading", ids.device).index_select(0, ids.reshape(-1)).view(ids.shape).to(ids.dtype)

    def missing_on(self, device: torch.device) -> torch.Tensor | None:
        """`missing` on a device. The copy is made once."""
        return None if self.missing is None else self._on("missing", device)

    def differences(self, limit: int = 3) -> list[str]:
        """The first differences in words: missing tokens, then moved ones, then the member's extra ones.

        At most `KEPT_DIFFERENCES` are remembered.
        """
        return list(self.compared.sentences[:limit]) if self.compared else []

    def summary(self, limit: int = 10) -> dict[str, Any]:
        """The map as a JSON object: names, rows, counts, coverage, and the first differences in words."""
        found = self.compared
        return {
            "leader": self.leader_name,
            "member": self.member_name,
            "compared": found is not None,
            "identical": self.identical,
            "coverage": self.coverage,
            "leader_rows": self.leader_rows,
            "member_rows": self.member_rows,
            "leader_tokens": found.tokens if found else None,
            "missing_tokens": found.missing if found else 0,
            "moved_tokens": found.moved if found else 0,
            "extra_tokens": found.extra if found else 0,
            "padding_rows": 0 if self.padding is None else int(self.padding.sum()),
            "missing_rows": 0 if self.missing is None else int(self.missing.sum()),
            "stand_in": self.stand_in,
            "differences": self.differences(limit),
        }

    def _on(self, name: str, device: torch.device) -> torch.Tensor:
        """One of the tables that the methods look up, on a device; made at the first call."""
        key = (name, device)
        if key not in self._copies:
            # A tensor made in inference mode could not be saved for a later backward pass.
            with torch.inference_mode(False):
                if name == "missing":
                    table = self.to_member < 0
                elif name == "index":
                    table = self.to_member.clamp(min=0)
                else:
                    table = torch.where(self.to_member < 0, self.stand_in, self.to_member)
                self._copies[key] = table.to(device)
        return self._copies[key]


def map_vocabulary(
    leader_tokenizer: PreTrainedTokenizerBase | None,
    member_tokenizer: PreTrainedTokenizerBase | None,
    leader_rows: int,
    member_rows: int,
    min_coverage: float = MIN_COVERAGE,
    leader_name: str = "leader",
    member_name: str = "member",
) -> VocabularyMap:
    """Match the leader's tokens with a member's. Without both tokenizers, equal rows are taken to mean equal ids.

    Args:
        leader_rows, member_rows: how many ids each model scores (rows of the head, padded ones too).
        min_coverage: the least share of the leader's tokens that the member must have, from 0 to 1.
        leader_name, member_name: for messages.

    Raises:
        TokenizerMismatchError: the member lacks too many tokens (the coverage and the first ones are named), or the
            two split a text into different tokens, or a tokenizer is absent and the numbers of rows differ.
        ConfigurationError: `min_coverage` is not between 0 and 1.
    """
    if not 0.0 <= min_coverage <= 1.0:
        raise ConfigurationError(f"min_coverage is a share from 0 to 1, not {min_coverage}.")
    if leader_tokenizer is None or member_tokenizer is None:
        check_same_size(leader_rows, member_rows, leader_name, member_name)
        return VocabularyMap(
            leader_name, member_name, torch.arange(leader_rows, device="cpu"), member_rows, None, 0, None
        )

    leader = _with_rows(leader_tokenizer.get_vocab(), leader_rows)
    member = _with_rows(member_tokenizer.get_vocab(), member_rows)
    found = compare_vocabularies(leader, member, leader_name, member_name)
    to_member, padding = _rows(leader, member, leader_rows, member_rows)
    stand_in = _stand_in(member_tokenizer, member_rows)
    result = VocabularyMap(leader_name, member_name, to_member, member_rows, padding, stand_in, found)
    if result.coverage < min_coverage:
        raise TokenizerMismatchError(
            f"'{member_name}' has {found.tokens - found.missing} of the {found.tokens} tokens of '{leader_name}' "
            f"({result.coverage:.1%}), and at least {min_coverage:.1%} are needed: "
            f"{'; '.join(result.differences())}. {ADVICE}"
        )
    if leader_tokenizer is not member_tokenizer:
        # Added tokens are cut from a text before anything else, and one side may lack them.
        added = leader_tokenizer.get_added_vocab().keys() | member_tokenizer.get_added_vocab().keys()
        common = sorted((leader.keys() & member.keys()) - added, key=leader.__getitem__)
        check_same_splitting(leader_tokenizer, member_tokenizer, common, leader_name, member_name)
    return result


def compare_vocabularies(
    leader: dict[str, int], member: dict[str, int], leader_name: str = "leader", member_name: str = "member"
) -> Differences:
    """Count the tokens that are missing, moved and extra in `member`, and put the first ones into words."""
    missing = sorted((i, token) for token, i in leader.items() if token not in member)
    moved = sorted((i, token) for token, i in leader.items() if token in member and member[token] != i)
    extra = sorted((i, token) for token, i in member.items() if token not in leader)
    sentences = [f"{token!r} (id {i}) is missing in '{member_name}'" for i, token in missing[:KEPT_DIFFERENCES]]
    sentences += [
        f"{token!r} is id {i} in '{leader_name}' and id {member[token]} in '{member_name}'"
        for i, token in moved[:KEPT_DIFFERENCES]
    ]
    sentences += [f"{token!r} is only in '{member_name}' (id {i})" for i, token in extra[:KEPT_DIFFERENCES]]
    return Differences(len(leader), len(missing), len(moved), len(extra), tuple(sentences[:KEPT_DIFFERENCES]))


def check_same_splitting(
    leader: PreTrainedTokenizerBase,
    member: PreTrainedTokenizerBase,
    common: Sequence[str],
    leader_name: str = "leader",
    member_name: str = "member",
) -> None:
    """Refuse two tokenizers that split a text into different token strings; their ids may differ.

    Two texts are tried: `PROBE`, and one made of the `common` tokens, since `PROBE` says little about a vocabulary
    that has none of its words.

    Raises:
        TokenizerMismatchError: the first text and the place where the two part.
    """
    for text in (PROBE, vocabulary_probe(leader, common)):
        ours, theirs = (
            tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            for tokenizer in (leader, member)
        )
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
            where = slice(max(at - 1, 0), at + 4)
            raise TokenizerMismatchError(
                f"'{leader_name}' and '{member_name}' share a vocabulary but split text differently: in "
                f"{json.dumps(text[:24], ensure_ascii=False)}..., from token {at} on, {ours[where]} "
                f"and {theirs[where]}. {ADVICE}"
            )


def vocabulary_probe(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str], size: int = PROBE_TOKENS) -> str:
    """A text of up to `size` of these tokens, evenly spread: first apart, then run together, where merges decide."""
    chosen = tokens[:: max(1, len(tokens) // size)][:size]
    pieces = [tokenizer.convert_tokens_to_string([token]) for token in chosen]
    return " ".join(pieces) + " " + "".join(pieces)


def _with_rows(vocabulary: dict[str, int], rows: int) -> dict[str, int]:
    """The tokens that have a row: not those added without resizing the model, nor a GGUF file's names of padding."""
    return {token: i for token, i in vocabulary.items() if i < rows and token != f"[PAD{i}]"}


def _rows(
    leader: dict[str, int], member: dict[str, int], leader_rows: int, member_rows: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`to_member` and `padding` of a map: [leader_rows] each."""
    padding = torch.ones(leader_rows, dtype=torch.bool, device="cpu")
    padding[list(leader.values())] = False
    if leader == member and leader_rows == member_rows:
        to_member = torch.arange(leader_rows, device="cpu")
    else:
        to_member = torch.full((leader_rows,), -1, device="cpu")
        pairs = [(i, member[token]) for token, i in leader.items() if token in member]
        if pairs:
            ours, theirs = torch.tensor(pairs, device="cpu").unbind(-1)
            to_member[ours] = theirs
    return to_member, padding if bool(padding.any()) else None


def _stand_in(tokenizer: PreTrainedTokenizerBase, rows: int) -> int:
    """The id that is read for a token which the member lacks; the rule stands in the module docstring."""
    choices = (tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id)
    return next((i for i in choices if isinstance(i, int) and i < rows), 0)
