"""How a logit composition is shown: its members, its formula and mask, and how its vocabularies map."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lmcompose.memory import as_count, as_size
from lmcompose.quantization import in_words


def members_table(members: Mapping[str, Mapping[str, Any]], temperatures: Mapping[str, float] | None) -> Table:
    """The members by role, as `describe` or a plan has them."""
    columns = ("role", "kind", "model", "revision", "shape", "parameters", "weights", "licence")
    table = Table(*columns, title="Members (frozen)")
    for role, member in members.items():
        model = str(member["name_or_path"])
        if member.get("adapter"):
            model += f" + {member['adapter']}"
        if (temperatures or {}).get(role, 1.0) != 1.0:
            model += f" (temperature {(temperatures or {})[role]:g})"
        table.add_row(
            role,
            member["kind"],
            Text(model),
            _revision(member),
            f"{member['model_type']}, {member['num_hidden_layers']} x {member['hidden_size']}, "
            f"{member['vocab_size']:,} ids",
            _parameters(member),
            _weights(member),
            member["license"] or "not stated",
        )
    return table


def _revision(member: Mapping[str, Any]) -> str:
    adapter = f", adapter {member['adapter_revision']}" if member.get("adapter_revision") else ""
    return (member["revision"] or "-") + adapter


def _parameters(member: Mapping[str, Any]) -> str:
    if member["parameters"] is None:
        return "not found here"
    adapter = member.get("adapter_parameters") or 0
    return as_count(member["parameters"]) + (f" + {as_count(adapter)}" if adapter else "")


def _weights(member: Mapping[str, Any]) -> str:
    own, shared, packed = member.get("weight_bytes"), member.get("shares_with"), member.get("quantization")
    if shared:
        return f"those of {shared}" + (f" + {as_size(own)}" if own else "")
    parts = (as_size(own) if own else "", in_words(packed) if packed else "", member["dtype"])
    return ", ".join(text for text in parts if text) or "-"


def formula_lines(composition: Mapping[str, Any]) -> list[RenderableType]:
    """Formula, parameters, mask and policy in a few lines."""
    values = ", ".join(f"{name} = {value}" for name, value in (composition["parameters"] or {}).items())
    lines = [f"Formula: {composition['formula']}" + (f"   with {values}" if values else "")]
    mask = composition["plausibility"]
    chosen = "all tokens"
    if mask:
        chosen = f"the tokens that {mask['member']} finds plausible ({mask['kind']} {mask['value']:g})"
    lines.append(
        f"It adds up {composition['scores']} and chooses among {chosen}; tokens that a member lacks: "
        f"{composition['missing_tokens']}."
    )
    if composition["drafter"]:
        lines.append(f"Drafter in speculative decoding: {composition['drafter']}.")
    return [Text(line) for line in lines]


def vocabularies_table(vocabularies: Mapping[str, Mapping[str, Any]], leader: str) -> Table:
    """How the leader's tokens map to the others', as `VocabularyMap.summary` has it."""
    columns = ("member", "coverage", "ids", "missing", "moved", "extra", "first differences")
    table = Table(*columns, title=f"Tokens of {leader}")
    for role, found in vocabularies.items():
        if "error" in found:
            table.add_row(role, "-", "-", "-", "-", "-", Text(found["error"]))
            continue
        same = "same tokens, same ids" if found["compared"] else "not compared: no tokenizer was found"
        table.add_row(
            role,
            f"{found['coverage']:.2%}" if found["compared"] else "-",
            f"{found['leader_rows']:,} : {found['member_rows']:,}",
            *(f"{found[f'{kind}_tokens']:,}" for kind in ("missing", "moved", "extra")),
            Text("\n".join(found["differences"]) or same),
        )
    return table


def memory_line(plan: Mapping[str, Any]) -> Text:
    """What the members take, and what there is."""
    return Text(
        f"Memory ({plan['device']}): weights {as_size(plan['weight_bytes'])}, and about "
        f"{as_size(plan['cache_bytes_per_token'])} of cache for each token of each text; "
        f"{as_size(plan['available_bytes'])} free of {as_size(plan['total_bytes'])}: {plan['verdict']}"
    )
