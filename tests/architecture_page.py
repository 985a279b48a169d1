"""`docs/architectures.md`, drawn from the tables of tests and source: `python -m tests.architecture_page` writes it."""

from __future__ import annotations

from pathlib import Path

from lmcompose.architecture import REFUSED, UNCONNECTED
from tests.architectures import UNPACKABLE, Architecture
from tests.tiny import ARCHITECTURES

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
MARK = "<!-- {}: from `python -m tests.architecture_page` -->"

NOT_TRIED: dict[str, tuple[str, ...]] = {
    "Models of pictures or sounds, whose part for text may be in the first table under its own name": (
        "dots3_note", "emu3", "fuyu", "gemma3", "gemma4", "gemma4_unified", "git", "got_ocr2", "llama4", "mllama",
        "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5", "qwen3_5_moe",
    ),
    "Attention to some tokens only, which an index of each layer chooses": (
        "axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "minimax_m3_vl_text",
    ),
    "Heads that draft for one model of theirs": ("gemma4_assistant", "gemma4_unified_assistant"),
    "Llama, GPT-2, DeepSeek-V3 or GLM-4 under another name": (
        "exaone", "gpt-sw3", "internlm3", "iquestcoder", "sarvam_mla", "sarvam_moe",
    ),
    "Others": (
        "apertus1p5_text", "bailing_hybrid", "beam", "big_bird", "cohere_compass_text", "dory", "flint",
        "gemma4_unified_text", "hrm_text", "inkling2_loop_text", "inkling2_text", "inkling_text", "kolibri1",
        "lara_mini", "lfm3", "roc_bert", "zaya",
    ),
}  # fmt: skip
"""Causal language models of transformers that nobody composed here, and why not."""


def exceptions(architecture: Architecture) -> str:
    """What a composition with this member cannot do, in words."""
    said = []
    if architecture.config.get("is_decoder"):
        said.append("with `is_decoder: true` in its configuration; refused as an encoder without")
    if not architecture.static_cache:
        said.append("static cache: wrong (1)")
    if not architecture.pieces:
        said.append("several tokens at a time after the first ones: wrong (1)")
    elif not architecture.padded_steps:
        said.append("padding in chunks of one token: wrong (1)")
    if not architecture.takes_back:
        said.append("drafts: refused (2)")
    if architecture.model_type in UNPACKABLE:
        said.append("packing: refused (4)")
    if architecture.note:
        said.append(architecture.note)
    return "; ".join(said)


def works() -> list[str]:
    """The table of what was tested, one line for each `model_type`."""
    by_type: dict[str, list[Architecture]] = {}
    for architecture in ARCHITECTURES.values():
        by_type.setdefault(architecture.model_type, []).append(architecture)
    lines = ["| `model_type` | anchor | augmenting | logits | but |", "| --- | --- | --- | --- | --- |"]
    for model_type, forms in sorted(by_type.items()):
        connects = "yes" if all(form.connects for form in forms) else "no (3)"
        but = "; ".join(dict.fromkeys(said for form in forms if (said := exceptions(form))))
        lines.append(f"| `{model_type}` | {connects} | {connects} | yes | {but} |")
    return lines


def refused() -> list[str]:
    """The table of what cannot work, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for model_type, reason in REFUSED.items():
        by_reason.setdefault(reason, []).append(model_type)
    lines = ["| `model_type` | why it cannot be a member |", "| --- | --- |"]
    lines += [f"| {_names(names)} | {reason} |" for reason, names in by_reason.items()]
    return lines


def unconnected() -> list[str]:
    """The list of what logit compositions alone may take."""
    by_reason: dict[str, list[str]] = {}
    for model_type, reason in UNCONNECTED.items():
        by_reason.setdefault(reason, []).append(model_type)
    return [f"- {_names(names)}: {reason}." for reason, names in by_reason.items()]


def not_tried() -> list[str]:
    """The list of the rest."""
    return [f"- {why}: {_names(names)}." for why, names in NOT_TRIED.items()]


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


PARTS = {"works": works, "unconnected": unconnected, "refused": refused, "not tried": not_tried}


def drawn(page: str) -> str:
    """`page` with each marked part drawn anew."""
    for name, draw in PARTS.items():
        begin, end = MARK.format(name), MARK.format(f"end of {name}")
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = "\n".join([before + begin, "", *draw(), "", end + after])
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
