"""The parts of a tokenizer, read from the JSON of its Rust backend. What a family is called is decided by these parts.

The alignment asks a tokenizer for more than ids: where it may cut a text, and what each id adds to one. Only a
tokenizer of the ``tokenizers`` library says so; a slow one, or one with parts written in Python, is refused.
"""

import json
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from lmcompose.errors import MemberError

Spec = dict[str, Any]

WHITE_SPACE = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
"""The Unicode property White_Space, which the Rust side means by white space. Python's ``isspace`` has four more."""

_EMPTY: Spec = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}


def read_backend(tokenizer: PreTrainedTokenizerBase | None, name: str) -> Spec:
    """The backend of a tokenizer as a JSON object.

    Args:
        name: the model's, for messages.

    Raises:
        MemberError: there is no tokenizer, or no backend that can be read.
    """
    if tokenizer is None:
        raise MemberError(
            f"'{name}' has no tokenizer, and members with different tokens are aligned by their tokenizers. Put its "
            "tokenizer files (tokenizer.json, tokenizer_config.json) into the model's folder, or pass a live model "
            "with its tokenizer: (model, tokenizer)."
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise MemberError(
            f"'{name}' has a tokenizer without a fast backend ({type(tokenizer).__name__}), which cannot say where its "
            "tokens begin and end. Use one with a tokenizer.json: load it with AutoTokenizer and use_fast=True, or "
            "convert it and save it again."
        )
    try:
        return json.loads(backend.to_str())
    except Exception as error:  # The Rust side raises plain exceptions: a part that is written in Python.
        raise MemberError(
            f"The tokenizer of '{name}' cannot be written as JSON ({error}), so nothing says how it cuts a text. Use a "
            "tokenizer whose parts are all of the tokenizers library."
        ) from error


def build(**parts: Any) -> Tokenizer:
    """A tokenizer of these parts of a JSON object, and of no others."""
    return Tokenizer.from_str(json.dumps(_EMPTY | parts))


def flat(part: Spec | None, inside: str) -> list[Spec]:
    """The steps of a normalizer, pre-tokenizer or decoder in order; `inside` is the key of a sequence's list."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[inside] for step in flat(inner, inside)]
    return [part]


def special_ids(tokenizer: PreTrainedTokenizerBase, spec: Spec) -> frozenset[int]:
    """The ids of tokens that stand for no text: added tokens that are special, those that the tokenizer has a role
    for (begin, end, padding ...), and the model's unknown token."""
    added = {token["id"] for token in spec["added_tokens"]}
    special = {token["id"] for token in spec["added_tokens"] if token["special"]}
    special |= {i for i in tokenizer.all_special_ids if i in added}
    unknown = unknown_id(spec)
    return frozenset(special if unknown is None else special | {unknown})


def unknown_id(spec: Spec) -> int | None:
    """The id that the model of a tokenizer gives to what it does not know."""
    model = spec["model"]
    if model["type"] == "Unigram":
        return model.get("unk_id")
    return model["vocab"].get(model.get("unk_token"))


def leading_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer puts before a text by itself: its BOS, where it adds one."""
    plain = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    whole = tokenizer("a", verbose=False)["input_ids"]
    for at in range(len(whole) - len(plain) + 1):
        if whole[at : at + len(plain)] == plain:
            return list(whole[:at])
    return []
