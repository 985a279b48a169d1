"""One prompt, as each member is to read it: its own chat template, system prompt and context.

Texts are written out for each member and tokenized by its own tokenizer; no token is ever decoded to be encoded again.
This file knows tokenizers, and no model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from lmcompose.errors import ConfigurationError, DataError, nearest

Conversation = Sequence[Mapping[str, str]]
Prompt = str | Conversation
"""A text to go on with, or messages `{"role": ..., "content": ...}`."""

PerRow = str | Sequence[str]
"""One text for all prompts, or one for each."""


def prepare_prompts(
    tokenizers: Mapping[str, PreTrainedTokenizerBase],
    prompts: Prompt | Sequence[Prompt],
    *,
    context: Mapping[str, PerRow] | None = None,
    system: Mapping[str, PerRow] | None = None,
    templates: Mapping[str, str] | None = None,
) -> dict[str, torch.Tensor]:
    """Tensors for `generate`: the leader's prompts and, where others read something else, theirs.

    Args:
        tokenizers: by role, the leader first.
        prompts: texts or conversations, one or many.
        context: role -> what that member alone reads before the prompt: in front of a text as it is written, and in
            front of the last user message of a conversation, with an empty line between.
        system: role -> that member's system message, in place of the conversation's own.
        templates: role -> a chat template in Jinja, or another role whose template it is to use.

    Returns:
        `input_ids` and `attention_mask` [batch, length], padded on the left; and `member_input_ids` and
        `member_attention_mask` [batch, members but the leader, length], unless all members read the very same ids.

    Raises:
        ConfigurationError: an unknown role, or a member without a chat template.
        DataError: no prompts, or one that is empty for a member.
    """
    batch = _as_batch(prompts)
    for option in (context, system, templates):
        for role in option or {}:
            if role not in tokenizers:
                raise ConfigurationError(
                    f"There is no member '{role}'; the members are {list(tokenizers)}.{nearest(role, tokenizers)}"
                )
    rows = {
        role: [
            _encoded(
                tokenizers,
                role,
                prompt,
                _at(context, role, row, len(batch)),
                _at(system, role, row, len(batch)),
                (templates or {}).get(role),
                row,
            )
            for row, prompt in enumerate(batch)
        ]
        for role in tokenizers
    }
    leader, *others = rows
    ids, mask = _padded([rows[leader]], tokenizers[leader].pad_token_id or 0)
    inputs = {"input_ids": ids[:, 0], "attention_mask": mask[:, 0]}
    if any(rows[role] != rows[leader] for role in others):
        ids, mask = _padded([rows[role] for role in others], 0)  # it is masked, and every member has this id
        inputs |= {"member_input_ids": ids, "member_attention_mask": mask}
    return inputs


def _as_batch(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str) or (isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence) or not prompts:
        raise DataError("There is no prompt. Give a text, a conversation, or a list of them.")
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, (str, Sequence)) or not all(isinstance(part, (str, Mapping)) for part in prompt):
            raise DataError(
                f"Prompt {row} is neither a text nor a conversation of messages {{'role': ..., 'content': ...}}. Token "
                "ids go to generate(input_ids) as they are."
            )
    return list(prompts)


def _at(option: Mapping[str, PerRow] | None, role: str, row: int, rows: int) -> str | None:
    text = (option or {}).get(role)
    if text is None or isinstance(text, str):
        return text
    if len(text) != rows:
        raise ConfigurationError(f"'{role}' has {len(text)} texts for {rows} prompts; give one, or one for each.")
    return text[row]


def _encoded(
    tokenizers: Mapping[str, PreTrainedTokenizerBase],
    role: str,
    prompt: Prompt,
    context: str | None,
    system: str | None,
    template: str | None,
    row: int,
) -> list[int]:
    tokenizer = tokenizers[role]
    if isinstance(prompt, str):
        if system is not None:
            raise ConfigurationError(
                f"'{role}' has a system prompt, but prompt {row} is a text. Give a conversation: "
                '[{"role": "user", "content": ...}].'
            )
        ids: list[int] = tokenizer(f"{context or ''}{prompt}")["input_ids"] if context or prompt else []
    else:
        encoded: Any = tokenizer.apply_chat_template(
            _conversation(prompt, context, system),
            chat_template=_template(tokenizers, role, template),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
        ids = encoded["input_ids"]
    if not ids:
        raise DataError(f"Prompt {row} is empty for '{role}': there is no token to go on from. Write something.")
    return list(ids)


def _template(tokenizers: Mapping[str, PreTrainedTokenizerBase], role: str, wanted: str | None) -> str | None:
    """The template that a member is to use in place of its own, or None."""
    if wanted is not None and wanted not in tokenizers:
        if "{" not in wanted:  # nothing of the conversation would be in the prompt
            raise ConfigurationError(
                f"templates = {{'{role}': {wanted!r}}} is no template in Jinja, and there is no member of that name."
                f"{nearest(wanted, tokenizers)}"
            )
        return wanted
    owner = role if wanted is None else wanted
    if not tokenizers[owner].chat_template:
        having = [other for other, theirs in tokenizers.items() if theirs.chat_template]
        raise ConfigurationError(
            f"The tokenizer of '{owner}' has no chat template. Say which one '{role}' is to use: "
            f"templates={{'{role}': ...}}, a template in Jinja or one of the members that have one ({having})."
        )
    return None if wanted is None else cast(str, tokenizers[owner].chat_template)


def _conversation(messages: Conversation, context: str | None, system: str | None) -> list[dict[str, str]]:
    written = [dict(message) for message in messages]
    if system is not None:
        written = [{"role": "system", "content": system}, *(m for m in written if m["role"] != "system")]
    if context is not None:
        asked = [message for message in written if message["role"] == "user"]
        if not asked:
            raise DataError("A context goes in front of the last user message, and the conversation has none.")
        asked[-1]["content"] = f"{context}\n\n{asked[-1]['content']}"
    return written


def _padded(members: list[list[list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [batch, members, longest], padded on the left."""
    longest = max(len(row) for rows in members for row in rows)
    ids = torch.full((len(members[0]), len(members), longest), pad)
    mask = torch.zeros_like(ids)
    for member, rows in enumerate(members):
        for index, row in enumerate(rows):
            ids[index, member, longest - len(row) :] = torch.tensor(row)
            mask[index, member, longest - len(row) :] = 1
    return ids, mask
