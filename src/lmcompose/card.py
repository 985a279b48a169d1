"""The model card of a saved composition, and the record of how a result was made. Knows no model class."""

import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import torch

from lmcompose.gguf import hub_gguf
from lmcompose.places import is_written_as_path
from lmcompose.quantization import in_words
from lmcompose.reference import MemberReference

RECORDED_PACKAGES = (
    "lmcompose", "torch", "transformers", "safetensors", "accelerate", "datasets", "peft", "trl", "bitsandbytes",
    "lm_eval", "sacrebleu",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that shape a result; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def run_record(
    recipe: Mapping[str, Any] | None = None, seed: int | None = None, command: str | None = None
) -> dict[str, Any]:
    """What stands beside every result: the command, the recipe, the seed, the versions and the size of the machine."""
    return {
        "command": command if command is not None else _command_line(),
        "recipe": dict(recipe) if recipe is not None else None,
        "seed": seed,
        "versions": versions(),
        "machine": {"threads": torch.get_num_threads(), "processor": platform.machine()},
    }


def _command_line() -> str:
    program = Path(sys.argv[0]).name
    return shlex.join(["lmcompose" if program == "__main__.py" else program or "python", *sys.argv[1:]])


CARD = jinja2.Template(
    """---
library_name: lmcompose
tags:
- lmcompose
- {{ model_type }}
- model-composition
{%- if on_hub %}
base_model:
{%- for name in on_hub %}
- {{ name }}
{%- endfor %}
{%- endif %}
---

# {{ title }}

{{ summary }} This folder holds
{{ "only the " ~ parameters ~ " composition parameters" if parameters else "no weights" }}; the members are loaded from
where they are.

| member | model | revision | shape | licence |
| --- | --- | --- | --- | --- |
{%- for role, member in members.items() %}
| {{ role }} | {{ member.full_name }}{{ ", " ~ in_words(member.quantization) if member.quantization }} |
{{- " " }}{{ member.revision or "not versioned" }}
{{- ", adapter " ~ (member.adapter_revision or "not versioned") if member.adapter }} | {{ member.shape }} |
{{- " " }}{{ member.license or "not stated: see the model's own page" }} |
{%- endfor %}

A composition may be used only as the licences of all its members allow.

```python
import lmcompose
from transformers import AutoTokenizer

{% if unnamed -%}
# put a folder, a hub id or a live model for each member that had no name when this was saved
model = lmcompose.load("{{ folder }}", members={
{%- for role in unnamed %}"{{ role }}": ...{{ ", " if not loop.last }}{% endfor %}})
{%- else -%}
model = lmcompose.load("{{ folder }}")  # the same: AutoModelForCausalLM.from_pretrained("{{ folder }}")
{%- endif %}
tokenizer = AutoTokenizer.from_pretrained("{{ folder }}")
```
{% for heading, body in sections.items() %}
## {{ heading }}

```json
{{ body }}
```
{% endfor -%}
"""
)


def is_hub_id(name: str) -> bool:
    """Whether a member's name means the same to everybody: `owner/name`, a GGUF file in it, and nothing of here."""
    looks_like_one = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None or hub_gguf(name) is not None
    return looks_like_one and not is_written_as_path(name) and not Path(name).exists()


def unnamed(members: Mapping[str, MemberReference]) -> list[str]:
    """The roles of members that were live and had no name: nothing can say where to load them from."""
    return [role for role, member in members.items() if re.fullmatch(r"a live \w+", member.name_or_path)]


def model_card(
    *,
    folder: str,
    model_type: str,
    summary: str,
    parameters: int,
    members: Mapping[str, MemberReference],
    details: Mapping[str, Mapping[str, Any]],
) -> str:
    """A model card in Markdown with the header that the hub reads.

    Args:
        folder: the name of the saved folder, for the title and the loading example.
        parameters: how many numbers the folder holds; a logit composition has none.
        details: heading -> values, printed as JSON (connections, recipe, versions); empty ones are left out.
    """
    sections = {heading: json.dumps(body, indent=2, default=str) for heading, body in details.items() if body}
    places = [place for member in members.values() for place in member.places]
    return CARD.render(
        on_hub=list(dict.fromkeys("/".join(place.split("/")[:2]) for place in places if is_hub_id(place))),
        folder=folder,
        title=folder,
        model_type=model_type,
        summary=summary,
        parameters=f"{parameters:,}" if parameters else None,
        members=members,
        unnamed=unnamed(members),
        sections=sections,
        in_words=in_words,
    )
