"""Two models joined by text alone: the augmenting model answers, and its answer is put into the anchor's prompt.

That is how a tool would be used; the anchor sees words where a composition sees hidden states. The completion that is
asked for stays, token for token, what every other arm is asked for.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from lmcompose.architecture import position_limit
from lmcompose.errors import DataError
from lmcompose.evaluation.scoring import evaluating
from lmcompose.evaluation.texts import decode
from lmcompose.experiments.ablations.held_out import Documents
from lmcompose.experiments.stages import Report
from lmcompose.loading import Member
from lmcompose.training.encoding import Example
from lmcompose.training.packing import IGNORED


def prompt_of(example: Example, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text before the first token that is asked for."""
    return decode(tokenizer, example.input_ids[: _asked_from(example)].tolist(), special=False)


def _asked_from(example: Example) -> int:
    """The place of the first token that is asked for: the first that is learned, and never the first of all."""
    return 1 + int(np.argmax(example.labels[1:] != IGNORED))


@torch.no_grad()
def answers(
    member: Member, prompts: Sequence[str], new_tokens: int, rows_at_once: int = 8, report: Report | None = None
) -> list[str]:
    """What a model answers to each prompt, greedily, in words.

    Args:
        member: with its tokenizer.
        new_tokens: at most.
        rows_at_once: prompts in a batch; those of a length go together.
        report: told of the batches.

    Raises:
        DataError: a prompt leaves no position for an answer, or there is no tokenizer.
    """
    model, tokenizer = member.model, member.tokenizer
    if tokenizer is None:
        raise DataError(f"'{member.reference.name_or_path}' has no tokenizer, so that it cannot answer a text.")
    ids = [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    if tokenizer.eos_token_id is not None:
        ids = [each[:-1] if len(each) > 1 and each[-1] == tokenizer.eos_token_id else each for each in ids]
    limit = position_limit(model)
    longest = max(map(len, ids))
    room = new_tokens if limit is None else min(new_tokens, limit - longest)
    if room < 1:
        raise DataError(
            f"A prompt has {longest} tokens of '{member.reference.name_or_path}', which has positions for {limit}: "
            "none is left for an answer."
        )
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    starts = range(0, len(order), rows_at_once)
    found = [""] * len(ids)
    pad = next((each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), 0)
    with evaluating(model):
        for done, start in enumerate(starts, start=1):
            rows = order[start : start + rows_at_once]
            width = len(ids[rows[-1]])
            batch = torch.tensor([[pad] * (width - len(ids[row])) + ids[row] for row in rows], device=model.device)
            mask = torch.tensor([[0] * (width - len(ids[row])) + [1] * len(ids[row]) for row in rows])
            generate: object = model.generate
            out = generate(  # type: ignore[operator]
                input_ids=batch,
                attention_mask=mask.to(model.device),
                max_new_tokens=room,
                do_sample=False,
                pad_token_id=pad,
            )
            for row, text in zip(rows, out[:, width:].tolist(), strict=True):
                found[row] = decode(tokenizer, text, special=False).strip()
            if report is not None:
                report(done, len(starts), float("nan"))
    return found


def with_answer(
    example: Example, answer: str, template: str, tokenizer: PreTrainedTokenizerBase, limit: int | None = None
) -> Example:
    """The example with a longer prompt, and asked for the very same tokens.

    Args:
        answer: is cut where the whole would go past `limit`.
        template: with the places {answer} and {prompt}.
        tokenizer: of the example, the anchor's.
        limit: positions that the anchor has.

    Raises:
        DataError: there is no room even without an answer.
    """
    begin = _asked_from(example)
    prompt, rest = prompt_of(example, tokenizer), example.input_ids[begin:]
    words = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    while True:
        parts = {"prompt": prompt, "answer": answer}
        text = re.sub(r"\{(prompt|answer)\}", lambda place: parts[place[1]], template)  # noqa: B023
        before = list(tokenizer(text)["input_ids"])
        if tokenizer.eos_token_id is not None and before[-1:] == [tokenizer.eos_token_id]:
            before = before[:-1]
        over = 0 if limit is None else len(before) + len(rest) - limit
        if over <= 0:
            break
        if not words:
            raise DataError(
                f"A prompt and its completion have {len(before) + len(rest)} tokens in the pipeline's template, and "
                f"the anchor has positions for {limit}. Shorten the template or the data."
            )
        words = words[:-over]
        answer = decode(tokenizer, words, special=False)
    input_ids = np.concatenate([np.array(before, dtype=np.int32), rest]).astype(np.int32)
    labels = np.concatenate([np.full(len(before), IGNORED), example.labels[begin:]]).astype(np.int32)
    return Example(input_ids, labels)


def with_answers(
    documents: Documents,
    given: Sequence[str],
    template: str,
    tokenizer: PreTrainedTokenizerBase,
    limit: int | None = None,
) -> list[list[Example]]:
    """All documents with the answers to their examples, which `given` has in one row."""
    rest = iter(given)
    return [[with_answer(each, next(rest), template, tokenizer, limit) for each in document] for document in documents]
