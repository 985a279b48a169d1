"""What a model says about held-out documents: minus log-probabilities, added up by document."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.architecture import hook_head, run_with_head
from lmcompose.calm.prompts import prompt_of
from lmcompose.evaluation.scoring import evaluating, log_probabilities
from lmcompose.evaluation.texts import decode
from lmcompose.experiments.stages import Report
from lmcompose.training.encoding import Example
from lmcompose.training.packing import IGNORED, Collator

Documents = Sequence[Sequence[Example]]
"""Each document as the examples that it was cut into."""

POSITIONS_AT_ONCE = 64
"""Positions whose log-probabilities are in memory together: a vocabulary of 260,000 in float32 takes 1 MB at each."""


def lengths(documents: Documents, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """`tokens` and `bytes` (of UTF-8) of each document that a model is to predict.

    The first token of an example has nothing before it; special tokens count as tokens and as no bytes.
    """
    tokens, sizes = [], []
    for examples in documents:
        learned = [_learned(example) for example in examples]
        tokens.append(sum(map(len, learned)))
        sizes.append(sum(len(decode(tokenizer, ids, special=False).encode()) for ids in learned))
    return {"tokens": tokens, "bytes": sizes}


def _learned(example: Example) -> list[int]:
    return cast(list[int], example.input_ids[1:][example.labels[1:] != IGNORED].tolist())


def in_tokens_of(
    tokenizer: PreTrainedTokenizerBase, documents: Documents, anchor: PreTrainedTokenizerBase
) -> list[list[Example]]:
    """The same documents in the tokens of another model, which is to predict the same bytes.

    What the anchor is given of an example and not asked for, such as a prompt or its first token, is not asked for here
    either. A token that begins before a stretch that is asked for is not counted into it.

    Args:
        tokenizer: of the other model.
        anchor: the tokenizer of `documents`.
    """
    return [[_in_tokens_of(tokenizer, example, anchor) for example in examples] for examples in documents]


def _in_tokens_of(tokenizer: PreTrainedTokenizerBase, example: Example, anchor: PreTrainedTokenizerBase) -> Example:
    ids = example.input_ids.tolist()
    asked = [False, *(example.labels[1:] != IGNORED).tolist()]
    text = decode(anchor, ids, special=False)
    spans = _asked_of(text, ids, asked, anchor)
    encoded = tokenizer(text, return_offsets_mapping=True)
    own = list(encoded["input_ids"])
    learned = [
        end > start and any(begin <= start < close for begin, close in spans)
        for start, end in encoded["offset_mapping"]
    ]
    if ids[-1] == anchor.eos_token_id and asked[-1] and tokenizer.eos_token_id is not None:
        own, learned = [*own, tokenizer.eos_token_id], [*learned, True]
    if tokenizer.bos_token_id is not None and own[:1] != [tokenizer.bos_token_id] and learned[:1] == [True]:
        own, learned = (
            [tokenizer.bos_token_id, *own],
            [False, *learned],
        )  # or else its first token has nothing before it
    input_ids = np.array(own, dtype=np.int32)
    return Example(input_ids, np.where(np.array(learned), input_ids, IGNORED).astype(np.int32))


def _asked_of(
    text: str, ids: list[int], asked: list[bool], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, int]]:
    """Where in `text` the characters of the tokens that are asked for begin and end."""
    turns = [place for place in range(1, len(ids)) if asked[place] != asked[place - 1]]
    bounds = [len(decode(tokenizer, ids[:place], special=False)) for place in turns] + [len(text)]
    return list(zip(bounds[0::2], bounds[1::2], strict=False))


@torch.no_grad()
def bits(
    model: PreTrainedModel, documents: Documents, rows_at_once: int = 4, report: Report | None = None
) -> list[float]:
    """Minus the log-probability of the learned tokens of each document, in bits.

    Args:
        rows_at_once: examples in a batch.
        report: told of the batches.
    """
    flat = [(number, example) for number, examples in enumerate(documents) for example in examples]
    flat.sort(key=lambda each: len(each[1].input_ids))  # so that little is padding
    sums = np.zeros(len(documents))
    starts = range(0, len(flat), rows_at_once)
    with evaluating(model), hook_head(model) or nullcontext():
        for done, start in enumerate(starts, start=1):
            batch = flat[start : start + rows_at_once]
            collated = Collator(0)([{"input_ids": e.input_ids, "labels": e.labels} for _, e in batch])
            labels = collated.pop("labels")
            collated["prompt_mask"] = prompt_of(labels, collated["attention_mask"])  # for those that read it alone
            inputs: dict[str, Any] = {name: value.to(model.device) for name, value in collated.items()}
            asked = labels[:, 1:]
            keep = (asked != IGNORED).any(dim=0).nonzero()[:, 0]  # the head is dear, and prompts need none
            output = run_with_head(model, **inputs, logits_to_keep=keep.to(model.device), use_cache=False)
            logits = cast(torch.Tensor, output.logits)
            for row, (number, _) in enumerate(batch):
                sums[number] += _row_bits(logits[row], asked[row, keep].to(logits.device))
            if report is not None:
                report(done, len(starts), float("nan"))
    return sums.tolist()


def _row_bits(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Of logits [positions, V] and the labels [positions] of the same positions."""
    places = (labels != IGNORED).nonzero()[:, 0]
    total = 0.0
    for some in places.split(POSITIONS_AT_ONCE):
        total -= float(log_probabilities(logits[some]).gather(1, labels[some][:, None]).double().sum())
    return total / math.log(2)
