"""Latency and memory of two real models: training steps by CALM, LoRA and full tuning, and decoded tokens.

What is measured stands beside what was counted, as the same ratios. FLOPs leave out what waits for memory, and much of
the time of small models, of decoding and of a small batch is just that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lmcompose.adapters import INSTALL_PEFT
from lmcompose.architecture import meta_model, position_limit
from lmcompose.calm.compose import align_members, source_tokenizer
from lmcompose.calm.config import ANCHOR, SPANS
from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, DataError, MemberError, nearest
from lmcompose.experiments.overhead.jobs import Job, in_a_process_of_its_own, measure_decoding, measure_training
from lmcompose.loading import plan_member
from lmcompose.memory import BYTES, as_size, memory
from lmcompose.places import read_model_config
from lmcompose.quantization import stored
from lmcompose.sizes import size_of, stored_dtype

METHODS = {"calm": "CALM", "lora": "LoRA", "full": "full tuning"}
"""The ways to train, and how they are called."""

MEMBERS = ("anchor", "augmenting", "composition")
AUGMENTING = "augmenting"

ADAMW = 4
"""Numbers that AdamW needs for every one that learns: it, its gradient and two moments."""


@dataclass(frozen=True)
class Reading:
    """The text of a measurement in the tokens of both models.

    Attributes:
        rows: of the anchor, to train on [batch, length].
        prompts: of each, to decode after.
        augmenting_tokens: tokens of the augmenting model for each of the anchor's.
    """

    rows: list[list[int]]
    prompts: dict[str, list[int]]
    augmenting_tokens: float


def standard_text() -> str:
    """English that every Python brings: the topics of its help."""
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


def read(anchor: str, augmenting: str, text: str, batch: int, length: int, prompt: int) -> Reading:
    """Cut rows and prompts from a text; models without tokenizers read random tokens. No weight is read.

    Raises:
        MemberError: one of the two cannot be a member, is an adapter, or their tokenizers cannot be aligned.
        DataError: there is no text.
    """
    references = {role: plan_member(name, role) for role, name in ((ANCHOR, anchor), (AUGMENTING, augmenting))}
    for role, reference in references.items():
        if reference.adapter is not None:
            raise MemberError(
                f"'{reference.adapter}' (for the {role} model) is an adapter: LoRA would be put on LoRA. Merge it into "
                "its base with PEFT's merge_and_unload(), save that, and measure the folder."
            )
    tokenizers = {role: source_tokenizer(of.name_or_path, of) for role, of in references.items()}
    aligned = align_members(references, tokenizers)[AUGMENTING]
    ours: Any = tokenizers[ANCHOR]
    if ours is None:
        vocabulary = min(reference.vocab_size for reference in references.values())
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, vocabulary, (batch * length,), generator=generator).tolist()
    else:
        ids = _ids(ours, text)
    if not ids:
        raise DataError("The text is empty: give --text a file with some words in it.")
    ids = _filled(ids, max(batch * length, prompt))
    rows = [ids[start : start + length] for start in range(0, batch * length, length)]
    prompts = {ANCHOR: ids[:prompt], AUGMENTING: ids[:prompt]}
    ratio = 1.0
    if aligned == SPANS:
        theirs: Any = tokenizers[AUGMENTING]
        of_rows = [_ids(theirs, ours.decode(row)) for row in rows]
        ratio = sum(map(len, of_rows)) / (batch * length)
        prompts[AUGMENTING] = _filled(_ids(theirs, text), prompt)
    return Reading(rows, prompts, ratio)


def measure(
    anchor: str,
    augmenting: str,
    report: dict[str, Any],
    reading: Reading,
    *,
    methods: Sequence[str] = tuple(METHODS),
    new_tokens: int = 16,
    repetitions: int = 3,
    dtype: str | None = None,
    cpu_time: bool = False,
    text: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run what was counted: some training steps by each method, and some tokens decoded.

    Args:
        report: of `overhead_report`, for the same two models, length and `augmenting_tokens`.
        dtype: of the members; by default what they have. What is trained beside them is float32.
        cpu_time: count CPU seconds in place of wall time: a rough figure from a machine that is busy.
        text: the name of the text, for the record.
        say: told of each measurement before it begins.

    Returns:
        For JSON: "training" and "decoding" with what `jobs` measures, each with its ratio to full tuning or to the
        anchor alone, and the counted one.

    Raises:
        ConfigurationError: see `check_settings` and `check_fits`.
        MemberError: weights cannot be read.
    """
    check_settings(anchor, augmenting, reading, methods, new_tokens, dtype)
    check_fits(anchor, augmenting, report, methods, dtype)
    counted = report["training"]["methods"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    job = Job(
        anchor,
        augmenting,
        report["pairs"],
        counted["lora"]["rank"],
        reading.rows,
        reading.prompts,
        new_tokens,
        repetitions,
        dtype,
        device,
        cpu_time,
    )
    training = {}
    for method in methods:
        say(f"Training by {METHODS[method]}")
        training[method] = in_a_process_of_its_own(METHODS[method], measure_training, method, job)
    decoding = {}
    for name in MEMBERS:
        say(f"Decoding with the {name} alone" if name != "composition" else "Decoding with the composition")
        decoding[name] = in_a_process_of_its_own(f"decoding with the {name}", measure_decoding, name, job)
    if "full" in training:
        for found in training.values():
            found["over_full"] = found["seconds_per_step"] / training["full"]["seconds_per_step"]
    alone, theirs, both = (decoding[name]["seconds_per_token"] for name in MEMBERS)
    theirs *= reading.augmenting_tokens
    return {
        **run_record(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "dtype": {role: dtype or stored_dtype(read_model_config(name)) for role, name in _named(anchor, augmenting)},
        "clock": "CPU time of the process" if cpu_time else "wall time",
        "text": text,
        "batch": len(reading.rows),
        "length": len(reading.rows[0]),
        "prompt": len(reading.prompts[ANCHOR]),
        "new_tokens": new_tokens,
        "repetitions": repetitions,
        "training": training,
        "decoding": {**decoding, "over_anchor": both / alone, "over_members": both / (alone + theirs)},
    }


def check_settings(
    anchor: str, augmenting: str, reading: Reading, methods: Sequence[str], new_tokens: int, dtype: str | None
) -> None:
    """Refuse what no process could do, before the first is started.

    Raises:
        ConfigurationError: a dtype that is none, texts longer than a model's table of positions, or LoRA without PEFT.
    """
    if dtype is not None and dtype not in BYTES:
        raise ConfigurationError(f"--dtype: '{dtype}' is none of {', '.join(BYTES)}.{nearest(dtype, BYTES)}")
    longest = max(len(reading.rows[0]), len(reading.prompts[ANCHOR]) + new_tokens)
    for (role, name), tokens in zip(_named(anchor, augmenting), (1.0, reading.augmenting_tokens), strict=True):
        positions = position_limit(meta_model(read_model_config(name)))
        if positions is not None and longest * tokens > positions:
            raise ConfigurationError(
                f"'{name}' (the {role} model) has positions for {positions} tokens, and would read about "
                f"{longest * tokens:.0f}: give a smaller --length."
            )
    if "lora" in methods and find_spec("peft") is None:
        raise ConfigurationError(
            f"LoRA is trained with PEFT, which is not installed: {INSTALL_PEFT}; or leave it out, --methods calm,full."
        )


def needed_bytes(
    anchor: str, augmenting: str, report: dict[str, Any], methods: Sequence[str], dtype: str | None = None
) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state of each method, and of decoding; exact, without activations.

    Raises:
        ConfigurationError: all of the anchor is to learn, and its weights are quantized.
    """
    configs = {name: read_model_config(name) for name in (anchor, augmenting)}
    weights = {role: size_of(configs[name], name, dtype).weight_bytes for role, name in _named(anchor, augmenting)}
    if "full" in methods and stored(configs[anchor]):
        raise ConfigurationError(
            f"The weights of '{anchor}' are quantized, and cannot learn. Leave full tuning out: --methods calm,lora."
        )
    both, trained = sum(weights.values()), report["training"]["methods"]
    needed = {
        "calm": both + ADAMW * BYTES["float32"] * trained["calm"]["trained"],
        "lora": weights[ANCHOR] + ADAMW * BYTES["float32"] * trained["lora"]["trained"],
        "full": ADAMW * weights[ANCHOR],
    }
    return {**{method: needed[method] for method in methods}, "decoding": both}


def check_fits(
    anchor: str, augmenting: str, report: dict[str, Any], methods: Sequence[str], dtype: str | None = None
) -> None:
    """Refuse what cannot fit, before any weight is read.

    Raises:
        ConfigurationError: naming the method, what it needs at least, and what is free.
    """
    free, _ = memory()
    for method, bytes_needed in needed_bytes(anchor, augmenting, report, methods, dtype).items():
        if bytes_needed > free:
            name = METHODS.get(method, method)
            others = ",".join(other for other in methods if other != method)
            way = f"leave it out with --methods {others}, or " if method in METHODS and others else ""
            raise ConfigurationError(
                f"{name[0].upper()}{name[1:]} needs {as_size(bytes_needed)} before its first activation, and "
                f"{as_size(free)} are free: {way}give smaller models or --dtype bfloat16."
            )


def _named(anchor: str, augmenting: str) -> tuple[tuple[str, str], ...]:
    return (ANCHOR, anchor), (AUGMENTING, augmenting)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _filled(ids: list[int], length: int) -> list[int]:
    """The first `length` of `ids`, which begin again where they are too few."""
    return (ids * -(-length // len(ids)))[:length]
