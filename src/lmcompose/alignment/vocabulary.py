"""Whether two members read the same tokens. Nothing here looks at weights."""

import json

from transformers import PreTrainedTokenizerBase

from lmcompose.errors import TokenizerMismatchError

PROBE = "The 12 quick foxes — naïve café, 日本語, emoji 🦊, tabs\tand\n\nlines; def f(x): return x**2  # ok"
"""Text with digits, accents, scripts, code and white space: tokenizers that merely share a vocabulary differ on it."""


def vocabulary_differences(left: PreTrainedTokenizerBase, right: PreTrainedTokenizerBase, limit: int = 3) -> list[str]:
    """The first `limit` tokens on which two vocabularies disagree, each as a sentence; empty when they agree."""
    ours, theirs = left.get_vocab(), right.get_vocab()
    differing = sorted(
        (token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)),
        key=lambda token: min(ours.get(token, 1 << 60), theirs.get(token, 1 << 60)),
    )
    return [f"{token!r} is {_id(ours, token)} and {_id(theirs, token)}" for token in differing[:limit]]


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"


def check_same_tokenizer(
    left: PreTrainedTokenizerBase, right: PreTrainedTokenizerBase, left_name: str, right_name: str
) -> None:
    """Refuse two tokenizers that give one text different ids. Padded embedding rows do not matter here.

    Raises:
        TokenizerMismatchError: the vocabularies differ (the first differences are named) or the splitting does.
    """
    advice = "The members of a composition must share one tokenizer; choose two models of one family."
    differences = vocabulary_differences(left, right)
    if differences:
        raise TokenizerMismatchError(
            f"'{left_name}' and '{right_name}' have different tokenizers: {'; '.join(differences)}. {advice}"
        )
    ours, theirs = (tokenizer(PROBE, add_special_tokens=False)["input_ids"] for tokenizer in (left, right))
    if ours != theirs:
        raise TokenizerMismatchError(
            f"'{left_name}' and '{right_name}' share a vocabulary but split text differently: "
            f"{json.dumps(PROBE[:24], ensure_ascii=False)}... becomes {ours[:8]}... and {theirs[:8]}.... {advice}"
        )


def check_same_size(left_size: int, right_size: int, left_name: str, right_name: str) -> None:
    """The check that is left when a member came without its tokenizer.

    Raises:
        TokenizerMismatchError: the embedding tables differ in rows, so nothing says that the ids mean the same.
    """
    if left_size != right_size:
        raise TokenizerMismatchError(
            f"'{left_name}' has {left_size} token ids and '{right_name}' has {right_size}, and without both tokenizers "
            "nothing says that they mean the same. Pass each live model with its tokenizer: (model, tokenizer)."
        )
