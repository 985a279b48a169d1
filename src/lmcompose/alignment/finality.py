"""Which tokens of an augmenting tokenizer are final while a text grows: those that no later text can change.

The text goes through what a tokenizer does to one, in the same order, and each stage lets pass what is certain and
keeps the rest: added tokens (`added.py`), the normalizer (`normalizing.py`), added tokens of the normalized text, the
pre-tokenizer's cuts (`cuts.py`), and the model, which reads what lies between two cuts by itself. Nothing that has
passed is read again, so a text costs what its parts cost.

Special tokens are not looked for: a text that spells one stays text, also where the model's own vocabulary has it.
The end of a segment is certain for every stage, and the next segment is a text of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from lmcompose.alignment.added import Added, AddedTokens
from lmcompose.alignment.backend import Spec, build, flat, leading_ids, read_backend, special_ids, unknown_id
from lmcompose.alignment.cuts import cuts_of
from lmcompose.alignment.normalizing import Step, normalized, normalizing_steps
from lmcompose.errors import MemberError

SEGMENT, RUN, MIDDLE = 0, 1, 2
"""Where the text that a stage keeps begins: a segment, after an added token, or within what has passed in part."""


@dataclass(frozen=True)
class Kept:
    """What one stage keeps of a text.

    Attributes:
        text: the part that is not certain yet.
        place: `SEGMENT`, `RUN` or `MIDDLE`.
        mark: the stage's own: how much was searched for cuts, or whether white space is dropped.
    """

    text: str = ""
    place: int = SEGMENT
    mark: int = 0


Piece = str | int
"""What goes from stage to stage: text, or the id of an added token that was cut from it."""


class FinalTokens:
    """The final tokens of a text that grows, for one tokenizer.

    Attributes:
        leading: the ids before every row (BOS, where the tokenizer adds it); final from the start.

    Raises:
        MemberError: no tokenizer, no fast backend, or a part of which nothing says what is final.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, name: str = "augmenting") -> None:
        spec = read_backend(tokenizer, name)
        assert tokenizer is not None
        check_model(spec, name)
        self.leading = leading_ids(tokenizer)
        special = special_ids(tokenizer, spec)
        steps = normalizing_steps(spec, name)
        raw, changed = _added_tokens(spec, special, steps, name)
        self._stages: list[_Cutting | _Normalizing | _Words] = []
        if raw:
            self._stages.append(_Cutting(raw))
        self._stages += [_Normalizing(step) for step in steps]
        if changed:
            self._stages.append(_Cutting(changed))
        self._stages.append(_Words(spec, special, name))

    def start(self) -> tuple[Kept, ...]:
        """The state of a text of which nothing was read."""
        return tuple(Kept() for _ in self._stages)

    def grow(self, state: tuple[Kept, ...], text: str, closed: bool = False) -> tuple[list[int], tuple[Kept, ...]]:
        """Read more of a text.

        Args:
            closed: whether the segment ends after it.

        Returns:
            The ids that became final, and the next state.
        """
        pieces: list[Piece] = [text] if text else []
        kept = list(state)
        for i, stage in enumerate(self._stages):
            if not pieces and not closed:
                break
            passed: list[Piece] = []
            for piece in pieces:
                if isinstance(piece, str):
                    out, kept[i] = stage.take(kept[i], piece, False)
                    passed += out
                else:
                    out, _ = stage.take(kept[i], "", True)
                    passed += out
                    passed.append(piece)
                    kept[i] = Kept(place=RUN)
            if closed:
                out, _ = stage.take(kept[i], "", True)
                passed += out
                kept[i] = Kept()
            pieces = passed
        return [piece for piece in pieces if isinstance(piece, int)], tuple(kept)

    def whole(self, text: str) -> list[int]:
        """The ids of a whole segment, without `leading`."""
        return self.grow(self.start(), text, closed=True)[0]

    def waiting(self, state: tuple[Kept, ...]) -> int:
        """How many characters are read and not final."""
        return sum(len(kept.text) for kept in state)


class _Cutting:
    """Cuts added tokens from the text."""

    def __init__(self, tokens: Sequence[Added]) -> None:
        self._tokens = AddedTokens(tokens)

    def take(self, kept: Kept, text: str, closed: bool) -> tuple[list[Piece], Kept]:
        found, rest, dropping = self._tokens.cut(kept.text + text, bool(kept.mark), closed)
        return found, Kept(rest, MIDDLE, int(dropping))


class _Normalizing:
    """One step of the normalizer."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def take(self, kept: Kept, text: str, closed: bool) -> tuple[list[Piece], Kept]:
        out, waiting, middle = self._step.take(kept.text + text, kept.place == MIDDLE, closed)
        return [out] if out else [], Kept(waiting, MIDDLE if middle else kept.place)


class _Words:
    """Pre-tokenizer and model: text to ids."""

    def __init__(self, spec: Spec, special: frozenset[int], name: str) -> None:
        model = _without_special(spec, special)
        splitter = spec["pre_tokenizer"]
        plain = _without_prefix(splitter)
        self.inner = build(model=model, pre_tokenizer=plain)
        self._at_segment = self._at_run = self.inner
        if plain != splitter:
            self._at_segment = build(model=model, pre_tokenizer=splitter)
            first_only = [part.get("prepend_scheme") == "first" for part in flat(splitter, "pretokenizers")]
            self._at_run = self.inner if any(first_only) else self._at_segment
        self._cuts = cuts_of(spec, self.inner, self._at_segment, name)

    def take(self, kept: Kept, text: str, closed: bool) -> tuple[list[Piece], Kept]:
        text = kept.text + text
        if closed:
            return list(self._encoder(kept.place).encode(text).ids) if text else [], Kept()
        encoder = self._encoder(kept.place)
        place, known, words = self._cuts.last(text, kept.mark, at_start=encoder is not self.inner)
        if not place:
            return [], Kept(text, kept.place, known)
        if words is None:
            ids: list[Piece] = list(encoder.encode(text[:place]).ids)
        else:
            read = encoder.encode(text)
            ids = [i for i, word in zip(read.ids, read.word_ids, strict=True) if word is not None and word < words]
        return ids, Kept(text[place:], MIDDLE, known)

    def _encoder(self, place: int) -> Tokenizer:
        return (self._at_segment, self._at_run, self.inner)[place]


def check_model(spec: Spec, name: str) -> None:
    """Refuse a model that reads one text in several ways.

    Raises:
        MemberError: it does (BPE dropout).
    """
    if spec["model"].get("dropout"):
        raise MemberError(
            f"The tokenizer of '{name}' drops merges at random (dropout = {spec['model']['dropout']}), so a text has "
            "no tokens of its own. Set tokenizer.backend_tokenizer.model.dropout to None."
        )


def _added_tokens(spec: Spec, special: frozenset[int], steps: list[Step], name: str) -> tuple[list[Added], list[Added]]:
    """The added tokens that are looked for in a text, and those that are looked for in the normalized text."""
    raw, changed = [], []
    for token in spec["added_tokens"]:
        if token["special"] or token["id"] in special or not token["content"]:
            continue
        if token["single_word"]:
            raise MemberError(
                f"The tokenizer of '{name}' has an added token that must be a word of its own ({token['content']!r}, "
                "single_word), and whether it is one depends on text around it. Add it without single_word."
            )
        added = Added(token["content"], token["id"], token["lstrip"], token["rstrip"])
        if token["normalized"]:
            changed.append(replace(added, content=normalized(steps, added.content)))
        else:
            raw.append(added)
    return raw, [token for token in changed if token.content]


def _without_special(spec: Spec, special: frozenset[int]) -> dict[str, Any]:
    """The model, with its special tokens renamed to what no text can spell: no piece holds a space."""
    model = dict(spec["model"])
    hidden = special - {unknown_id(spec)}
    if model["type"] == "Unigram":
        model["vocab"] = [
            [f"special {i}" if i in hidden else piece, score] for i, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        merged = set()
        for merge in model.get("merges", ()):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            merged |= {left, right, left + right}
        model["vocab"] = {
            f"special {i}" if i in hidden and token not in merged else token: i for token, i in model["vocab"].items()
        }
    return model


def _without_prefix(splitter: Spec | None) -> Spec | None:
    """A pre-tokenizer that puts no space before a text. What a later step puts before each piece stays."""
    parts = flat(splitter, "pretokenizers")
    plain = []
    for i, part in enumerate(parts):
        if part["type"] == "ByteLevel" and not i:
            part = part | {"add_prefix_space": False}
        elif part["type"] == "Metaspace" and (not i or part["prepend_scheme"] == "first"):
            part = part | {"prepend_scheme": "never"}
        plain.append(part)
    return splitter if plain == parts else {"type": "Sequence", "pretokenizers": plain}
