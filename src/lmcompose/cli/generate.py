"""`lmcompose generate MODEL`: text from a saved composition."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.output import show_json
from lmcompose.cli.saved_model import MemberOption, ModelArgument, load_composition
from lmcompose.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lmcompose.composed import ComposedModel


class Dtype(StrEnum):
    """Number formats of the members."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True)
class Prompt:
    """What the user wrote, and the text or chat that the model is to continue."""

    written: str
    messages: list[dict[str, str]] | None = None


def generate(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The text to continue; left out or '-', it is read from stdin."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help="Many prompts: a file with one a line, a .jsonl file with 'prompt' or 'messages', or '-' for stdin.",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the anchor's chat template, as a user's message.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after so many tokens.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token each time; higher samples more freely.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest tokens that make up this much.")
    ] = 1.0,
    num_beams: Annotated[int, typer.Option(min=1, help="Beam search over so many candidates.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the sampling: the same seed gives the same text.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts of --batch that run at once.")] = 8,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per prompt: prompt, text, tokens, seconds, finish.")
    ] = False,
    member: MemberOption = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the members; by default as they were saved.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps; by default a GPU if there is one.")
    ] = None,
) -> None:
    """Generate text with a saved composition, printing it as it comes.

    Examples:

      lmcompose generate runs/stories/model "Once upon a time"
      cat question.txt | lmcompose generate runs/chat/model --chat --temperature 0.7
      lmcompose generate runs/stories/model --batch prompts.txt --json > answers.jsonl
      lmcompose generate runs/stories/model "Once" --member anchor=/where/it/is/now
    """
    prompts = _read_prompts(prompt, batch, chat)
    composition = load_composition(model, member, dtype.value if dtype else None, device)
    tokenizer = composition.tokenizer
    if tokenizer is None:
        raise ConfigurationError(
            f"'{model}' was saved without a tokenizer. Save it again from a composition whose anchor has one: "
            "compose(anchor=(model, tokenizer), ...)."
        )
    import torch

    torch.manual_seed(seed)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_p": top_p}
    if batch is None and not as_json and num_beams == 1:
        _stream(composition, tokenizer, prompts[0], options)
        return
    if tokenizer.pad_token_id is None:
        batch_size = 1  # rows of unequal length cannot be put together
    for start in range(0, len(prompts), batch_size):
        for answer in _answers(composition, tokenizer, prompts[start : start + batch_size], options):
            if as_json:
                show_json(answer, lines=True)
            else:
                typer.echo(answer["text"])


# ---------------------------------------------------------------------------------------------------------- prompts


def _read_prompts(prompt: str | None, batch: str | None, chat: bool) -> list[Prompt]:
    if batch is not None:
        if prompt is not None:
            raise ConfigurationError("Give either a prompt or --batch, not both.")
        prompts = list(_read_batch(batch, chat))
        if not prompts:
            raise DataError(f"There is no prompt in {'stdin' if batch == '-' else batch}. Write one a line.")
        return prompts
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            typer.echo("Type a prompt and end it with Ctrl-D.", err=True)
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise ConfigurationError("The prompt is empty. Give a text to continue, as an argument or on stdin.")
    return [_prompt(prompt, chat)]


def _prompt(text: str, chat: bool) -> Prompt:
    return Prompt(text, [{"role": "user", "content": text}] if chat else None)


def _read_batch(file: str, chat: bool) -> Iterator[Prompt]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"--batch {file}: {error.strerror}. Name a file with one prompt a line.") from None
    except UnicodeDecodeError:
        raise DataError(f"--batch {file} is not a UTF-8 text file.") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        yield _from_json(line, f"{file}, line {number}", chat) if file.endswith(".jsonl") else _prompt(line, chat)


def _from_json(line: str, where: str, chat: bool) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError:
        raise DataError(f"{where} is not JSON. A .jsonl file has one JSON object a line.") from None
    if isinstance(record, dict) and isinstance(record.get("messages"), list):
        return Prompt(line, record["messages"])
    if isinstance(record, dict) and isinstance(record.get("prompt"), str):
        return _prompt(record["prompt"], chat)
    raise DataError(f"{where} has neither 'prompt' (a text) nor 'messages' (a list).")


# ------------------------------------------------------------------------------------------------------- generation


def _encode(
    composition: "ComposedModel", tokenizer: "PreTrainedTokenizerBase", prompts: list[Prompt]
) -> dict[str, Any]:
    """Left-padded `input_ids` and `attention_mask` [prompts, longest] of texts, or of chats, on the model's device."""
    import torch

    rows = [_token_ids(tokenizer, prompt) for prompt in prompts]
    if len(rows) == 1:  # needs no padding token
        ids = torch.tensor(rows)
        encoded = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        padded = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        encoded = {name: padded[name] for name in ("input_ids", "attention_mask")}
    return {name: tensor.to(composition.device) for name, tensor in encoded.items()}


def _token_ids(tokenizer: "PreTrainedTokenizerBase", prompt: Prompt) -> list[int]:
    if prompt.messages is None:
        ids = tokenizer(prompt.written)["input_ids"]
    elif tokenizer.chat_template is None:
        raise ConfigurationError(
            "The anchor's tokenizer has no chat template. Leave out --chat, and give prompts as text."
        )
    else:
        text = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # a chat template writes its own
    if not ids:
        raise ConfigurationError("A prompt has no tokens for this model's tokenizer. Give a longer text.")
    return list(ids)


def _stream(
    composition: "ComposedModel", tokenizer: "PreTrainedTokenizerBase", prompt: Prompt, options: dict[str, Any]
) -> None:
    from transformers import TextStreamer

    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    composition.generate(**_encode(composition, tokenizer, [prompt]), streamer=streamer, **options)


def _answers(
    composition: "ComposedModel", tokenizer: "PreTrainedTokenizerBase", prompts: list[Prompt], options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """One dict per prompt; `seconds` is the time of the prompts that ran together."""
    encoded = _encode(composition, tokenizer, prompts)
    started = time.perf_counter()
    output = composition.generate(**encoded, pad_token_id=tokenizer.pad_token_id, **options)
    seconds = time.perf_counter() - started
    ends = composition.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    for prompt, row in zip(prompts, output[:, encoded["input_ids"].shape[1] :].tolist(), strict=True):
        length = next((index + 1 for index, token in enumerate(row) if token in ends), len(row))
        yield {
            "prompt": prompt.messages if prompt.written.startswith("{") and prompt.messages else prompt.written,
            "text": tokenizer.decode(row[:length], skip_special_tokens=True),
            "tokens": length,
            "seconds": round(seconds, 4),
            "finish": "stop" if row[length - 1] in ends else "length",
        }
