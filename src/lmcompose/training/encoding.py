"""One record -> token ids and labels, with a label only where there is something to learn.

text            every token is learned, and an end-of-text token follows.
prompt/completion   the completion is learned, given the prompt; an end-of-text token follows.
chat            what the assistant says is learned, by the chat template of the anchor's tokenizer.

Labels are not shifted, and IGNORED where nothing is learned. This file knows neither files nor models.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from lmcompose.errors import DataError
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import DataSource

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Example(NamedTuple):
    """`input_ids` and `labels` of one example, int32 arrays of one length."""

    input_ids: np.ndarray
    labels: np.ndarray


def encode(
    record: dict[str, Any], where: str, source: DataSource, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Iterator[Example]:
    """The examples that one record becomes: one, none (skipped), or several (a long text that is split).

    Raises:
        DataError: no token at all, no label at all, or nothing left to learn within `max_length` tokens.
    """
    if source.kind == "text":
        ids, learned = _text(record["text"], tokenizer)
    elif source.kind == "prompt_completion":
        ids, learned = _prompt_completion(record["prompt"], record["completion"], tokenizer)
    else:
        ids, learned = _chat(record["messages"], where, tokenizer)
    if not any(learned[1:]):
        raise DataError(
            f"{where}: there is nothing to learn: "
            + ("it is empty." if not ids else "none of its tokens follows another and is part of an answer.")
            + " Take it out or complete it."
        )
    yield from _within(ids, learned, where, source, max_length)


def _within(ids: list[int], learned: list[bool], where: str, source: DataSource, max_length: int) -> Iterator[Example]:
    policy = source.long_examples or ("split" if source.kind == "text" else "truncate")
    if len(ids) <= max_length:
        yield _example(ids, learned)
    elif policy == "split":
        # A last piece of one token has nothing to predict it from, so it is left out.
        for start in range(0, len(ids) - 1, max_length):
            yield _example(ids[start : start + max_length], learned[start : start + max_length])
    elif policy == "truncate":
        if not any(learned[1:max_length]):
            raise DataError(
                f"{where}: its {len(ids)} tokens are cut to max_length {max_length}, and nothing of its answer is "
                "left. Raise training.max_length, or set long_examples: skip for this source."
            )
        yield _example(ids[:max_length], learned[:max_length])
    elif policy == "error":
        raise DataError(
            f"{where}: {len(ids)} tokens are more than max_length {max_length}. Raise training.max_length, or set "
            "long_examples to truncate or skip for this source."
        )


def _example(ids: list[int], learned: list[bool]) -> Example:
    input_ids = np.array(ids, dtype=np.int32)
    return Example(input_ids, np.where(np.array(learned), input_ids, IGNORED).astype(np.int32))


def _text(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[bool]]:
    ids = _with_end(tokenizer(text)["input_ids"] if text else [], tokenizer)
    return ids, [True] * len(ids)


def _prompt_completion(
    prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """The prompt's ids are those that generation will start from: never a token that spans the boundary."""
    if not completion:
        return [], []
    before = _without_end(tokenizer(prompt)["input_ids"], tokenizer)
    together = _without_end(tokenizer(prompt + completion)["input_ids"], tokenizer)
    if together[: len(before)] == before:
        after = together[len(before) :]
    else:
        after = tokenizer(completion, add_special_tokens=False)["input_ids"]
    ids = _with_end([*before, *after], tokenizer)
    return ids, [False] * len(before) + [True] * (len(ids) - len(before))


def _chat(
    messages: list[dict[str, Any]], where: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    if template is None:
        raise DataError(
            "The anchor's tokenizer has no chat template, so kind 'chat' cannot be used. Use an instruction-tuned "
            "anchor, or write the data as prompt and completion (kind: prompt_completion)."
        )
    try:
        marked = _MARKS_ANSWERS.search(template)
        whole, spans = _marked(messages, template, tokenizer) if marked else _by_prefixes(messages, where, tokenizer)
    except DataError:
        raise
    except Exception as error:  # a template is a program of its author's, and raises what it likes
        raise DataError(f"{where}: the chat template refuses this conversation: {error}") from error
    # By characters and not by `assistant_masks`, which before transformers 5.24 goes on to the end of the conversation
    # where a marked part ends in a space.
    encoded: Any = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    starts = [start for start, _ in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), [any(begin <= start < end for begin, end in spans) for start in starts]


Spans = list[tuple[int, int]]


def _marked(messages: list[dict[str, Any]], template: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, Spans]:
    """The conversation as text, and where a template with generation marks says that the assistant speaks."""
    render: Any = render_jinja_template  # it returns a pair where its annotation says str
    texts, spans = render(
        [messages], chat_template=template, return_assistant_tokens_mask=True, **tokenizer.special_tokens_map
    )
    return texts[0], spans[0]


def _by_prefixes(messages: list[dict[str, Any]], where: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, Spans]:
    """For a template that does not mark answers: what a turn of the assistant adds to the text before it is learned."""

    def render(count: int, prompt: bool) -> str:
        return str(tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt))

    whole = render(len(messages), False)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, through = render(turn, True), render(turn + 1, False)
        if not (through.startswith(before) and whole.startswith(through)):
            raise DataError(
                f"{where}: the chat template rewrites earlier turns, so the assistant's words cannot be told from the "
                "rest. Give the tokenizer a template with {% generation %} marks, split the conversation into one "
                "example per answer, or use kind: prompt_completion."
            )
        spans.append((len(before), len(through)))
    return whole, spans


def _with_end(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    end = tokenizer.eos_token_id
    return list(ids) if not ids or end is None or ids[-1] == end else [*ids, end]


def _without_end(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Some tokenizers end every text with their end-of-text token; a prompt must not."""
    end = tokenizer.eos_token_id
    return list(ids[:-1]) if ids and ids[-1] == end else list(ids)
