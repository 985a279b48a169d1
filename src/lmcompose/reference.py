"""Which model a member is: what is saved of it, and how another one in its place is told apart.

A reference names the model, its shape and a few of its weights. This file reads no file and knows nothing about how
members are found, loaded or composed.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from lmcompose.architecture import text_config
from lmcompose.errors import WrongBaseError

FINGERPRINT_PARAMETERS = 16
FINGERPRINT_TOLERANCE = 2**-6  # twice bf16's step: the same weights in another dtype still match

BARE = "__base__"
"""What PEFT calls a model without any of its adapters."""

_IN_THE_HUBS_CACHE = re.compile(r"models--[^/]+/snapshots/([^/]+)/")


@dataclasses.dataclass(frozen=True)
class MemberReference:
    """Which model a member is: enough to load it again and to tell when another one stands in its place.

    With an `adapter` (PEFT, a folder or a hub id), name, revision and shape are those of the base that it is put on.
    `quantization` is the configuration of quantised weights as transformers has it, the checkpoint's own or the one
    that they are read with.
    """

    name_or_path: str
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    revision: str | None = None
    license: str | None = None
    dtype: str | None = None
    fingerprint: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    adapter: str | None = None
    adapter_revision: str | None = None
    quantization: dict[str, Any] | None = None

    @classmethod
    def from_config(cls, config: PreTrainedConfig, name_or_path: str, **known: Any) -> "MemberReference":
        """The part of a reference that a configuration tells."""
        text = text_config(config)
        return cls(
            name_or_path=name_or_path,
            model_type=config.model_type,
            hidden_size=text.hidden_size,
            num_hidden_layers=text.num_hidden_layers,
            num_attention_heads=text.num_attention_heads,
            vocab_size=text.vocab_size,
            **known,
        )

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "MemberReference":
        """The reference that `to_dict` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in saved.items() if name in known})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a configuration or JSON."""
        return dataclasses.asdict(self)

    @property
    def places(self) -> list[str]:
        """Every folder, file or hub id that the member is loaded from."""
        return [self.name_or_path] if self.adapter is None else [self.name_or_path, self.adapter]

    @property
    def full_name(self) -> str:
        """The name in words, with the adapter where there is one."""
        return self.name_or_path if self.adapter is None else f"{self.name_or_path} with the adapter {self.adapter}"

    @property
    def shape(self) -> str:
        """The shape in words, for messages."""
        return (
            f"{self.model_type}, {self.num_hidden_layers} layers of width {self.hidden_size}, "
            f"{self.vocab_size} token ids"
        )


def commit_of(file: str | Path) -> str | None:
    """The commit that a file in the hub's cache is of; None for any other file."""
    found = _IN_THE_HUBS_CACHE.search(Path(file).as_posix())
    return found[1] if found else None


def fingerprint(model: PreTrainedModel, adapter: str | None = None) -> dict[str, list[float]]:
    """Two values each of a few weight matrices, by name: they tell another training run of the same shape apart.

    Quantised weights are passed over, since their numbers are not those of the model they were made from: what is left
    of such a model, its embeddings above all, is compared with a plain one. Among quantised models the largest weights
    of some blocks (4-bit) or rows (8-bit) tell them apart, which bitsandbytes keeps as numbers. Adapters
    (PEFT) are counted, summed up and sampled apart, so that a model with them is told from the bare one, whose matrices
    have the same names. So are whole modules of which an adapter has its own copy (`modules_to_save`).

    Args:
        adapter: count this adapter alone, or none of them (`BARE`); all that the model has by default.
    """
    adapted, copied = _adapter_parameters(model), _copied_parameters(model)
    added = {f"{path}.{name}" for found in (adapted, copied) for path, parts in found.items() for name in parts}
    matrices = [
        (name.replace(".base_layer.", ".").replace(".original_module.", "."), parameter)
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2
        and parameter.is_floating_point()
        and parameter.device.type != "meta"
        and name not in added
    ]
    layers, copies = (
        [
            [
                parameter
                for name, parameter in parameters.items()
                if (adapter is None or adapter in name.split(".")) and parameter.device.type != "meta"
            ]
            for parameters in found.values()
        ]
        for found in (adapted, copied)
    )
    return {
        **_summed("adapters", layers),
        **_summed("modules_to_save", copies),
        **_samples(matrices),
        **_samples(_largest(model)),
        **_samples(_numbered("adapters", layers)),
        # whole modules change little in training, and embeddings in a few rows alone, so more of them is looked at
        **_samples(_numbered("modules_to_save", copies), values=32),
    }


def _summed(kind: str, modules: Sequence[Sequence[torch.Tensor]]) -> dict[str, list[float]]:
    """How many modules have parameters of this kind, and the sum of what these parameters are without their signs."""
    sums = [
        float(torch.linalg.vector_norm(parameter.detach(), 1, dtype=torch.float32))
        for parameters in modules
        for parameter in parameters
        if parameter.numel()
    ]
    return {kind: [float(sum(map(bool, modules))), sum(sums)]}


def _numbered(kind: str, modules: Sequence[Sequence[torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """The parameters by number, since PEFT lets one adapter be called this here and that there."""
    counted = [parameter for parameters in modules for parameter in parameters if parameter.numel()]
    return [(f"{kind}.{number}", parameter) for number, parameter in enumerate(counted)]


def _samples(parameters: Sequence[tuple[str, torch.Tensor]], values: int = 2) -> dict[str, list[float]]:
    """So many values each of some of `parameters`, evenly spread over them."""
    sampled = {}
    for name, parameter in parameters[:: max(1, len(parameters) // FINGERPRINT_PARAMETERS)]:
        flat = parameter.detach().reshape(-1)
        places = torch.tensor([part * len(flat) // (values + 1) for part in range(1, values + 1)], device=flat.device)
        sampled[name] = [float(value) for value in flat[places].float().cpu()]
    return sampled


def _largest(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Of each matrix that bitsandbytes quantised, the largest weight of every block or row, without its sign.

    These depend on the weights alone, and neither on the device nor on how a processor has the packed bytes lie.
    """
    found: list[tuple[str, torch.Tensor]] = []
    for path, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        name = path.removesuffix(".base_layer")
        blocks = getattr(weight, "quant_state", None)
        rows = getattr(weight, "SCB", None)
        if rows is None:  # where it is kept once the layer has run
            rows = getattr(getattr(module, "state", None), "SCB", None)
        if blocks is not None and not blocks.nested:
            largest = blocks.absmax if blocks.absmax.ndim < 2 else blocks.absmax.mT  # laid out for some CPUs
            found.append((f"largest of {blocks.blocksize} in {name}", largest))
        elif rows is not None:
            found.append((f"largest of the rows of {name}", rows))
    return [(name, values) for name, values in found if values.numel() and values.device.type != "meta"]


def _adapter_parameters(model: PreTrainedModel) -> dict[str, dict[str, torch.nn.Parameter]]:
    """The parameters that PEFT added, by the path of an adapted layer: all but those of the layer that it wraps."""
    return {
        path: {name: parameter for name, parameter in module.named_parameters() if not name.startswith("base_layer.")}
        for path, module in model.named_modules()
        if hasattr(module, "base_layer")
    }


def _copied_parameters(model: PreTrainedModel) -> dict[str, dict[str, torch.nn.Parameter]]:
    """The parameters of an adapter's own copies of whole modules, by the path of the module that they stand in for."""
    return {
        path: dict(module.modules_to_save.named_parameters(prefix="modules_to_save"))
        for path, module in model.named_modules()
        if {"original_module", "modules_to_save"} <= dict(module.named_children()).keys()
    }


def same_weights(saved: dict[str, list[float]], found: dict[str, list[float]]) -> bool:
    """Whether two fingerprints are of the same weights, up to a change of dtype; only shared names are compared."""
    for name in saved.keys() & found.keys():
        for ours, theirs in zip(saved[name], found[name], strict=True):
            if abs(ours - theirs) > FINGERPRINT_TOLERANCE * max(abs(ours), abs(theirs)) + 1e-6:
                return False
    return True


def check_same_base(saved: MemberReference, found: MemberReference, role: str, made: str = "is composed of") -> None:
    """Refuse a model other than the one that a composition was saved with.

    Args:
        made: what the composition has to do with its members, in words.

    Raises:
        WrongBaseError: the shapes or the weights differ; the message has both names.
    """
    beginning = f"This composition {made} '{saved.full_name}' as {role}, but '{found.full_name}' is"
    advice = f"Pass the right model: from_pretrained(folder, members={{'{role}': ...}})."
    shapes = [
        (reference.model_type, reference.hidden_size, reference.num_hidden_layers, reference.vocab_size)
        for reference in (saved, found)
    ]
    if shapes[0] != shapes[1]:
        raise WrongBaseError(f"{beginning} of another shape ({found.shape}; it was {saved.shape}). {advice}")
    if not same_weights(saved.fingerprint, found.fingerprint):
        raise WrongBaseError(f"{beginning} a model of the same shape with other weights. {advice}")


def describe_members(references: dict[str, MemberReference]) -> dict[str, dict[str, Any]]:
    """References as plain values, with their order, which a configuration file would lose."""
    return {role: {**reference.to_dict(), "order": i} for i, (role, reference) in enumerate(references.items())}
