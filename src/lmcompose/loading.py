"""A hub id, a folder or a live object becomes a frozen member: a model, its tokenizer and a reference to both.

The plan (`plan_member`) reads configurations only, so that what cannot work is refused before any weight is read.
This file knows nothing about how members are composed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from lmcompose.architecture import check_causal_decoder, text_config
from lmcompose.errors import MemberError, WrongBaseError
from lmcompose.freezing import freeze, let_go

Source = str | Path | PreTrainedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase]
"""What a user may name as a member: a hub id, a folder, a live model, or a live model with its tokenizer."""

FINGERPRINT_PARAMETERS = 16
FINGERPRINT_TOLERANCE = 2**-6  # twice bf16's step: the same weights in another dtype still match


@dataclasses.dataclass(frozen=True)
class MemberReference:
    """Which model a member is: enough to load it again and to tell when another one stands in its place."""

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
    def shape(self) -> str:
        """The shape in words, for messages."""
        return (
            f"{self.model_type}, {self.num_hidden_layers} layers of width {self.hidden_size}, "
            f"{self.vocab_size} token ids"
        )


@dataclasses.dataclass
class Member:
    """A frozen model, its tokenizer where there is one, and the reference to both."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    reference: MemberReference


@contextmanager
def unharmed(members: Mapping[str, Member]) -> Iterator[None]:
    """Give `members` back as they were, should the block fail: no live model stays frozen for nothing."""
    try:
        yield
    except BaseException:
        for member in members.values():
            let_go(member.model)
        raise


def unwrapped(source: Any, role: str = "member") -> Source:
    """`source` with a PEFT wrapper taken off its live model; the adapted layers stay inside and in use.

    Raises:
        MemberError: the wrapper adds virtual tokens (prompt learning), which live outside the model's layers.
    """
    if isinstance(source, tuple):
        return unwrapped(source[0], role), source[1]  # type: ignore[return-value]
    if not hasattr(source, "get_base_model"):
        return source
    if source.active_peft_config.is_prompt_learning:
        raise MemberError(
            f"The {role} is a PEFT model with {source.active_peft_config.peft_type.value}, whose virtual tokens a "
            "composition cannot see. Use adapters inside the layers, such as LoRA."
        )
    return source.get_base_model()


def source_name(source: Source) -> str:
    """The name by which to speak of a source."""
    if isinstance(source, tuple):
        source = source[0]
    if isinstance(source, PreTrainedModel):
        return source.name_or_path or source.config.name_or_path or f"a live {type(source).__name__}"
    return str(source)


def is_written_as_path(source: str | Path) -> bool:
    """Whether `source` can only be a path: no hub id looks like it."""
    text = str(source)
    return isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text


def is_missing_folder(source: str | Path) -> bool:
    """Whether `source` can only be a path and nothing is there: asking the hub would cost half a minute offline."""
    return is_written_as_path(source) and not Path(source).exists()


def plan_member(
    source: Source, role: str = "anchor", revision: str | None = None, trust_remote_code: bool = False
) -> MemberReference:
    """The reference of a member from its configuration alone; no weight is read.

    Raises:
        MemberError: there is no such model, or it is not a decoder-only causal language model.
    """
    source = unwrapped(source, role)
    name = source_name(source)
    if isinstance(source, tuple):
        source = source[0]
    if isinstance(source, PreTrainedModel):
        config, revision = source.config, getattr(source.config, "_commit_hash", None)
    elif is_missing_folder(source):
        written_out = Path(source).expanduser()
        hint = f" ('~' is not replaced here: write {written_out}.)" if str(source).startswith("~") else ""
        raise MemberError(
            f"No model could be read at '{source}' (for the {role}): there is no such folder.{hint} Give a folder with "
            "a config.json, or the id of a model on the hub."
        )
    else:
        try:
            config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
        except Exception as error:  # hub, file-system and remote-code errors have no common base
            raise MemberError(
                f"No model could be read at '{source}' (for the {role}): {_first_line(error)} Give a folder with a "
                "config.json, or the id of a model on the hub."
            ) from error
        revision = resolved_revision(str(source), revision)
    check_causal_decoder(config, name, role)
    known_place = not isinstance(source, PreTrainedModel) or Path(name).is_dir()
    return MemberReference.from_config(
        config, name, revision=revision, license=license_of(name) if known_place else None
    )


def load_member(
    source: Source,
    *,
    role: str = "anchor",
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **model_kwargs: Any,
) -> Member:
    """Load one member and freeze it: no gradients, evaluation mode.

    Args:
        source: a hub id, a folder, a live model, or a (model, tokenizer) pair.
        dtype: of the weights as read; None keeps what the checkpoint has. Live models keep their own.
        model_kwargs: handed on to `AutoModelForCausalLM.from_pretrained`.

    Raises:
        MemberError: see `plan_member`; or the weights could not be read.
    """
    source = unwrapped(source, role)
    reference = plan_member(source, role, revision, trust_remote_code)
    if isinstance(source, tuple):
        model, tokenizer = source
    elif isinstance(source, PreTrainedModel):
        model, tokenizer = source, None
    else:
        model = _read_model(source, role, reference.revision, trust_remote_code, dtype, device_map, model_kwargs)
        tokenizer = read_tokenizer(source, reference.revision, trust_remote_code)
    freeze(model)
    reference = dataclasses.replace(
        reference, dtype=str(model.dtype).removeprefix("torch."), fingerprint=fingerprint(model)
    )
    return Member(model, tokenizer, reference)


def _read_model(
    source: str | Path, role: str, revision: str | None, trust: bool, dtype: Any, device_map: Any, model_kwargs: dict
) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision,
            trust_remote_code=trust,
            dtype="auto" if dtype is None else dtype,
            device_map=device_map,
            **model_kwargs,
        )
    except Exception as error:  # a cut file, missing weights, memory: all of them end the same way for the user
        raise MemberError(
            f"The weights of '{source}' (for the {role}) could not be read: {_first_line(error)} Load it alone with "
            "AutoModelForCausalLM.from_pretrained to see more."
        ) from error


def read_tokenizer(
    source: str | Path, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """The tokenizer that stands beside a model, or None where there is none."""
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError):
        return None


def resolved_revision(name: str, revision: str | None) -> str | None:
    """The commit that a hub id stands at, so that a saved composition names exact weights; None for a folder."""
    if Path(name).is_dir():
        return revision
    file = cached_file(name, "config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    parents = Path(file).parts if file else ()
    return parents[parents.index("snapshots") + 1] if "snapshots" in parents else revision


def license_of(name: str) -> str | None:
    """The licence that a model card names in its header, or None where it cannot be told."""
    try:
        card = cached_file(name, "README.md")
        return ModelCard.load(card).data.get("license") if card else None
    except (OSError, ValueError):  # no card, no connection, or a header that does not parse
        return None


def fingerprint(model: PreTrainedModel) -> dict[str, list[float]]:
    """Two values each of a few weight matrices, by name: they tell another training run of the same shape apart.

    Quantised weights are passed over, since their numbers are not those of the model they were made from. Adapters
    (PEFT) count and are summed up, so that a model with them is told from the bare one.
    """
    matrices = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2 and parameter.is_floating_point() and parameter.device.type != "meta"
    ]
    step = max(1, len(matrices) // FINGERPRINT_PARAMETERS)
    sampled = {}
    for name, parameter in matrices[::step]:
        flat = parameter.detach().reshape(-1)
        places = torch.tensor([len(flat) // 3, 2 * len(flat) // 3], device=flat.device)
        sampled[name] = [float(value) for value in flat[places].float().cpu()]
    sampled["adapters"] = _adapter_sums(model)
    return sampled


def _adapter_sums(model: PreTrainedModel) -> list[float]:
    """How many layers PEFT adapts, and the sum of the sizes of the adapters' values."""
    adapted = [module for module in model.modules() if hasattr(module, "base_layer")]
    total = 0.0
    for module in adapted:
        for name, parameter in module.named_parameters():
            if not name.startswith("base_layer.") and parameter.device.type != "meta":
                total += float(parameter.detach().float().abs().sum())
    return [float(len(adapted)), total]


def same_weights(saved: dict[str, list[float]], found: dict[str, list[float]]) -> bool:
    """Whether two fingerprints are of the same weights, up to a change of dtype; only shared names are compared."""
    for name in saved.keys() & found.keys():
        for ours, theirs in zip(saved[name], found[name], strict=True):
            if abs(ours - theirs) > FINGERPRINT_TOLERANCE * max(abs(ours), abs(theirs)) + 1e-6:
                return False
    return True


def check_same_base(saved: MemberReference, found: MemberReference, role: str) -> None:
    """Refuse a base model other than the one that a composition was trained on.

    Raises:
        WrongBaseError: the shapes or the weights differ; the message has both names.
    """
    beginning = f"This composition was trained with '{saved.name_or_path}' as {role}, but '{found.name_or_path}' is"
    advice = f"Pass the right model: from_pretrained(folder, members={{'{role}': ...}})."
    shapes = [
        (reference.model_type, reference.hidden_size, reference.num_hidden_layers, reference.vocab_size)
        for reference in (saved, found)
    ]
    if shapes[0] != shapes[1]:
        raise WrongBaseError(f"{beginning} of another shape ({found.shape}; it was {saved.shape}). {advice}")
    if not same_weights(saved.fingerprint, found.fingerprint):
        raise WrongBaseError(f"{beginning} a model of the same shape with other weights. {advice}")


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!", "?")) else line + "."
