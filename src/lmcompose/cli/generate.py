"""`lmcompose generate MODEL`: text from a saved composition."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.options import parse_pairs, parse_parameters
from lmcompose.cli.output import show_json
from lmcompose.cli.saved_model import MemberOption, ModelArgument, PickleOption, TrustOption, load_composition
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
    """What the user wrote, a text or a chat, and the chat that the model is to continue where it is one."""

    written: str | list[dict[str, str]]
    messages: list[dict[str, str]] | None = None
    context: dict[str, str] = field(default_factory=dict)
    """role -> what that member alone reads before the prompt."""
    system: dict[str, str] = field(default_factory=dict)
    """role -> that member's system message."""


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
            help="Many prompts: a .jsonl file with 'prompt' or 'messages' on each line; any other file, and '-' for "
            "stdin, is text with one prompt a line.",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the anchor's chat template, as a user's message.")
    ] = False,
    alpha: Annotated[
        str | None,
        typer.Option(
            help="The formula's alpha: a number, or one for each token with commas between, the last one for the rest."
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="NAME=NUMBER", help="Another parameter of the formula; as with --alpha."),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="ROLE=TEXT", help="What one member alone reads before the prompt."),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", metavar="ROLE=TEXT", help="One member's own system message; with --chat."),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            "--template", metavar="ROLE=ROLE", help="Whose chat template a member without one uses: base=expert."
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="NAME", help="Leave out one augmenting model; give it once for each."),
    ] = None,
    speculative: Annotated[
        bool,
        typer.Option("--speculative", help="Let one member of a logit composition draft: the same, sooner."),
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
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Generate text with a saved composition, printing it as it comes.

    Examples:

      lmcompose generate runs/stories/model "Once upon a time"
      cat question.txt | lmcompose generate runs/chat/model --chat --temperature 0.7
      lmcompose generate runs/stories/model --batch prompts.txt --json > answers.jsonl
      lmcompose generate runs/stories/model "Once" --member anchor=/where/it/is/now
      lmcompose generate runs/several/model "Once upon a time" --without law --without medicine
      lmcompose generate runs/proxy "Once upon a time" --alpha 1.5 --speculative
      lmcompose generate runs/proxy "What is a zorf?" --chat --system "expert=You know every word."
    """
    prompts = _read_prompts(prompt, batch, chat)
    reading = {
        "context": parse_pairs(context, "--context", "ROLE=TEXT", "with_context='A zorf is a boat. '"),
        "system": parse_pairs(system, "--system", "ROLE=TEXT", "expert='You know every word.'"),
    }
    templates = parse_pairs(template, "--template", "ROLE=ROLE", "base=expert")
    parameters = parse_parameters(alpha, parameter)
    composition = load_composition(
        model, member, dtype.value if dtype else None, device, trust_remote_code, no_safetensors
    )
    tokenizer = composition.tokenizer
    if tokenizer is None:
        raise ConfigurationError(
            f"'{model}' was saved without a tokenizer. Save it again from a composition whose first member has one: "
            "(model, tokenizer)."
        )
    prompts = [_with_readings(prompt, reading) for prompt in prompts]
    _check_kind(composition, prompts, bool(parameters or templates or speculative), bool(without))
    import torch

    torch.manual_seed(seed)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_p": top_p}
    if parameters:
        options["parameters"] = parameters
    if speculative:
        from lmcompose.decoding.speculative import Speculation

        options["speculative"] = Speculation()
    if tokenizer.pad_token_id is None:
        batch_size = 1  # rows of unequal length cannot be put together
    with _left_out(composition, without or []):
        if batch is None and not as_json and num_beams == 1:
            _stream(composition, tokenizer, _encode(composition, tokenizer, prompts, templates), options)
            return
        for start in range(0, len(prompts), batch_size):
            rows = prompts[start : start + batch_size]
            encoded = _encode(composition, tokenizer, rows, templates)
            for answer in _answers(composition, tokenizer, rows, encoded, options):
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
    """The prompts of a file: JSON lines by its ending .jsonl and nothing else; stdin, which has no ending, is text."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"--batch {file}: {error.strerror}. Name a file with one prompt a line.") from None
    except UnicodeDecodeError:
        raise DataError(f"--batch {file} is not a UTF-8 text file.") from None
    as_json = Path(file).suffix.lower() == ".jsonl"
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold what splitlines takes for a line's end
        if not line.strip():
            continue
        yield _from_json(line, f"{file}, line {number}", chat) if as_json else _prompt(line, chat)


def _from_json(line: str, where: str, chat: bool) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError:
        raise DataError(f"{where} is not JSON. A .jsonl file has one JSON object a line.") from None
    if not isinstance(record, dict):
        record = {}
    own = {name: record.get(name, {}) for name in ("context", "system")}
    for name, texts in own.items():
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise DataError(f'{where}: \'{name}\' must be an object of texts by role, such as {{"expert": "..."}}.')
    if isinstance(record.get("messages"), list):
        return Prompt(record["messages"], record["messages"], **own)
    if isinstance(record.get("prompt"), str):
        return replace(_prompt(record["prompt"], chat), **own)
    raise DataError(f"{where} has neither 'prompt' (a text) nor 'messages' (a list).")


# ------------------------------------------------------------------------------------------------------- generation


def _with_readings(prompt: Prompt, options: dict[str, dict[str, str]]) -> Prompt:
    """The prompt with what the options say for all; what stands beside a prompt itself goes before."""
    return replace(
        prompt, context={**options["context"], **prompt.context}, system={**options["system"], **prompt.system}
    )


def _left_out(composition: "ComposedModel", names: list[str]) -> AbstractContextManager[Any]:
    """Within the block, the augmenting models of these names are left out."""
    from lmcompose.calm.model import CalmForCausalLM

    return composition.without(*names) if isinstance(composition, CalmForCausalLM) else nullcontext()


def _check_kind(composition: "ComposedModel", prompts: list[Prompt], asked: bool, without: bool) -> None:
    """Refuse what this composition, or this kind of prompt, has no use of."""
    from lmcompose.logits.model import LogitForCausalLM

    if any(prompt.system and prompt.messages is None for prompt in prompts):
        raise ConfigurationError("A system message needs a chat: add --chat, or give 'messages' in a .jsonl file.")
    if (asked or any(prompt.context or prompt.system for prompt in prompts)) and not isinstance(
        composition, LogitForCausalLM
    ):
        raise ConfigurationError(
            f"This is a {composition.config.model_type} composition: it has no formula, and its members read one text. "
            "Leave out --alpha, --parameter, --context, --system, --template and --speculative; they are for what "
            "`lmcompose combine` makes."
        )
    if without and isinstance(composition, LogitForCausalLM):
        raise ConfigurationError(
            "This is a logit composition: it has no augmenting models to leave out. Leave out --without; a member "
            "counts for nothing where the parameter before it is 0, such as --alpha 0."
        )


def _encode(
    composition: "ComposedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: list[Prompt],
    templates: dict[str, str],
) -> dict[str, Any]:
    """Left-padded `input_ids` and `attention_mask` [prompts, longest] of texts, or of chats, on the model's device."""
    from lmcompose.logits.model import LogitForCausalLM

    if isinstance(composition, LogitForCausalLM):
        prepared = composition.prepare(
            [prompt.written if prompt.messages is None else prompt.messages for prompt in prompts],
            context=_by_role([prompt.context for prompt in prompts]),
            system=_by_role([prompt.system for prompt in prompts]),
            templates=templates,
        )
        return {name: tensor.to(composition.device) for name, tensor in prepared.items()}
    import torch

    rows = [_token_ids(tokenizer, prompt) for prompt in prompts]
    if len(rows) == 1:  # needs no padding token
        ids = torch.tensor(rows)
        encoded = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        padded = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        encoded = {name: padded[name] for name in ("input_ids", "attention_mask")}
    return {name: tensor.to(composition.device) for name, tensor in encoded.items()}


def _by_role(texts: list[dict[str, str]]) -> dict[str, Any]:
    """role -> its text for each prompt, None where there is none."""
    return {role: [row.get(role) for row in texts] for role in dict.fromkeys(role for row in texts for role in row)}


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
    composition: "ComposedModel",
    tokenizer: "PreTrainedTokenizerBase",
    encoded: dict[str, Any],
    options: dict[str, Any],
) -> None:
    from transformers import TextStreamer

    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    composition.generate(**encoded, streamer=streamer, **options)


def _answers(
    composition: "ComposedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: list[Prompt],
    encoded: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """One dict per prompt; `seconds` is the time of the prompts that ran together."""
    started = time.perf_counter()
    output = composition.generate(**encoded, pad_token_id=tokenizer.pad_token_id, **options)
    seconds = time.perf_counter() - started
    counted = {}
    if "speculative" in options and (statistics := options["speculative"].statistics) is not None:
        counted = {"acceptance": statistics.acceptance, "passes_per_token": statistics.passes_per_token}
    ends = composition.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    for prompt, row in zip(prompts, output[:, encoded["input_ids"].shape[1] :].tolist(), strict=True):
        length = next((index + 1 for index, token in enumerate(row) if token in ends), len(row))
        yield {
            "prompt": prompt.written,
            "text": tokenizer.decode(row[:length], skip_special_tokens=True),
            "tokens": length,
            "seconds": round(seconds, 4),
            "finish": "stop" if row[length - 1] in ends else "length",
            **counted,
        }
