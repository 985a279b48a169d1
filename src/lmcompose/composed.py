"""The shared base of all compositions: one `PreTrainedModel` with `generate`, whatever is inside.

It keeps the frozen members, saves and loads composition parameters only, and lets a live anchor go unharmed. How
members are combined is the business of its subclasses.
"""

import contextlib
import copy
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, cast

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lmcompose import architecture
from lmcompose.card import is_hub_id, model_card, unnamed, versions
from lmcompose.checkpointing import checkpointed_layers, set_checkpointing
from lmcompose.errors import ConfigurationError, SavedFolderError
from lmcompose.freezing import hold, let_go
from lmcompose.generation import ComposedGenerationMixin
from lmcompose.loading import Member, Source, unharmed
from lmcompose.saved import (
    ComposedConfig,
    check_format,
    load_members,
    put_tensors,
    read_config,
    read_tensors,
    upload,
    write_saved,
)

MEMBERS_PREFIX = "members."


class ComposedModel(PreTrainedModel, ComposedGenerationMixin):
    """One causal language model made of several frozen ones.

    Args:
        config: a `ComposedConfig` with the references of `members`.
        members: the frozen members by role; the first is the leader, which gives tokens, EOS, padding, chat template.
    """

    config: ComposedConfig
    config_class = ComposedConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    is_composed = True  # architecture.run_without_head runs a composed member whole
    accepts_loss_kwargs = True  # the loss consumes num_items_in_batch
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    summary: ClassVar[str] = "A composition of frozen language models."

    def __init__(self, config: ComposedConfig, members: Mapping[str, Member]) -> None:
        super().__init__(config)
        for role, member in members.items():
            if getattr(member.model, "reads_prompts", False):
                raise ConfigurationError(
                    f"The {role} is a composition with reads='prompt', which only its own generate can tell what the "
                    "prompt is. Compose it anew with reads='text' to make it a member."
                )
        self.members = nn.ModuleDict({role: member.model for role, member in members.items()})
        leader = next(iter(members.values()))
        self.tokenizers = {role: member.tokenizer for role, member in members.items()}
        self.tokenizer: PreTrainedTokenizerBase | None = leader.tokenizer
        self.generation_config: GenerationConfig = copy.deepcopy(leader.model.generation_config)
        self._disabled = False
        self._note_lengths()
        self._handles: list[Any] = []
        self._attached = False  # of its own, since a compiled forward cannot look at handles

    def _finish_init(self) -> None:
        """To be called last by subclasses: HF's bookkeeping, then the hooks."""
        self.post_init()
        for model in self.members.values():
            self._no_split_modules = {
                *(self._no_split_modules or ()),
                *(getattr(model, "_no_split_modules", None) or ()),
            }
        self.eval()
        self.attach()

    # ---- the leader and the parameters ------------------------------------------------------------------------

    @property
    def leader(self) -> PreTrainedModel:
        """The member whose tokens, special tokens and length are the composition's."""
        return cast(PreTrainedModel, next(iter(self.members.values())))

    def member(self, role: str) -> PreTrainedModel:
        """The frozen model in `role`."""
        return cast(PreTrainedModel, self.members[role])

    @property
    def device(self) -> torch.device:
        return self.leader.device

    @property
    def dtype(self) -> torch.dtype:
        return self.leader.dtype

    @property
    def supports_gradient_checkpointing(self) -> bool:  # type: ignore[override]  # HF has a class attribute
        return architecture.supports_gradient_checkpointing(self.leader)

    @property
    def _is_stateful(self) -> bool:  # type: ignore[override]  # HF has a class attribute, and asks it of every model
        return bool(self._stateful_roles())

    def get_input_embeddings(self) -> nn.Module:
        return self.leader.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module | None:
        return self.leader.get_output_embeddings()

    def get_decoder(self) -> nn.Module:
        return self.leader.get_decoder()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise ConfigurationError(
            "A composition cannot resize token embeddings: its members are frozen. Resize the members first, save "
            "them, and compose the saved models."
        )

    def composition_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and value of every parameter that belongs to the composition and to no member."""
        for name, parameter in self.named_parameters():
            if not name.startswith(MEMBERS_PREFIX):
                yield name, parameter

    def num_composition_parameters(self) -> int:
        """How many numbers belong to the composition and to no member."""
        return sum(parameter.numel() for _, parameter in self.composition_parameters())

    def init_weights(self) -> None:
        """Nothing: members come with their weights, and composition parameters are drawn where they are made."""

    def initialize_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing, for the same reason."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: each member has tied its own."""

    # ---- attach, detach, disable ------------------------------------------------------------------------------

    def attach(self) -> Self:
        """Connect to the live members again after `detach`, and freeze them. Does nothing when already attached.

        Gradient checkpointing is off after a `detach`: turn it on again where it is wanted.
        """
        if not self._attached:
            for model in self.members.values():
                hold(model, self)
            heads = [
                architecture.hook_head(model)
                for model in self.members.values()
                if not getattr(model, "is_composed", False)
            ]
            self._handles = [*self._hook_members(), *(handle for handle in heads if handle is not None)]
            self._attached = True
        return self

    def detach(self) -> PreTrainedModel:
        """Let go of the live members and return the leader, bit for bit as it was, with no hook left on it.

        What wanted a gradient wants it again; training mode, dropout and gradient checkpointing are as they were. Of a
        member that another composition holds too, that is so once the last one has let go.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._attached = False
        for model in self.members.values():
            let_go(model, self)
        return self.leader

    @property
    def is_attached(self) -> bool:
        """Whether the composition is connected to its live members."""
        return self._attached

    def _hook_members(self) -> list[Any]:
        """Hook the members; returns handles with `remove()`. Compositions that need no hooks return an empty list."""
        return []

    @contextlib.contextmanager
    def disable(self) -> Iterator[Self]:
        """Within the block, the composition is its leader, exactly.

        A plain boolean and not a context variable, so that a compiled forward notices the change.
        """
        before, self._disabled = self._disabled, True
        try:
            yield self
        finally:
            self._disabled = before

    # ---- modes ------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Training mode for the composition parameters; the members stay in evaluation mode, without dropout."""
        super().train(mode)
        for model in self.members.values():
            model.eval()
        for layer in checkpointed_layers(self.leader):
            layer.training = mode  # the flag that HF's checkpointing asks; the modules inside stay in evaluation mode
        return self

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Recompute the leader's layers in the backward pass, always non-reentrant (see `checkpointing.py`)."""
        set_checkpointing(self.leader, enable, every_n_layers=kwargs.get("every_n_layers", 1))
        self.train(self.training)

    def _replicate_for_data_parallel(self) -> NoReturn:
        """Refuse `nn.DataParallel`: its replicas would share the hooks, and so each other's hidden states.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "nn.DataParallel cannot replicate a composition. Start one process per GPU instead, with "
            "DistributedDataParallel or accelerate launch --num_processes ..."
        )

    def enable_input_require_grads(self) -> None:
        """Nothing: frozen members need no graph, and one through the augmenting model would only cost memory."""

    def set_attn_implementation(self, attn_implementation: str | dict, *args: Any, **kwargs: Any) -> None:
        """Choose the attention of the composition's own parts; live members keep theirs."""
        if isinstance(attn_implementation, dict):
            attn_implementation = str(attn_implementation.get("", self.config._attn_implementation))
        self.config._attn_implementation_internal = self._check_and_adjust_attn_implementation(
            attn_implementation, is_init_check=False
        )

    # ---- save and load ----------------------------------------------------------------------------------------

    def save_pretrained(  # type: ignore[override]  # a composition has one small file, so no shards
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Write composition parameters, configuration, tokenizer and card; a crash leaves the old folder or the new.

        Args:
            save_directory: the folder; other files in it (a checkpoint's optimizer state) stay.
            state_dict: gathered weights, where a distributed trainer has them; members' keys are passed over.
            push_to_hub: also upload it; further arguments are those of `push_to_hub`.

        Raises:
            SavedFolderError: the folder could not be written; what was there before is untouched.
        """
        if not is_main_process:
            return
        nameless = unnamed(self.config.references())
        if nameless:
            warnings.warn(
                f"{nameless} came live and have no name, so what is saved cannot say where to load them from: whoever "
                "loads it must pass them, lmcompose.load(folder, members={...}). Save each with save_pretrained and "
                "compose the folders, or set its name_or_path before composing.",
                stacklevel=2,
            )
        target = Path(save_directory)
        tensors = {
            name: tensor.detach().contiguous().cpu()
            for name, tensor in (state_dict or self.state_dict()).items()
            if not name.startswith(MEMBERS_PREFIX)
        }
        config = copy.deepcopy(self.config)
        config.architectures = [type(self).__name__]
        config.provenance = {**(config.provenance or {}), "versions": versions()}
        card = self._model_card(target.resolve().name)
        write_saved(target, tensors, config, self.generation_config, self.tokenizer, card)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", target.name), **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]
        """Upload the composition parameters and their card to the hub; returns the commit's address.

        Args:
            kwargs: `private`, `token`, `revision`, `commit_message`, `commit_description`, `create_pr`.
        """
        places = [place for member in self.config.references().values() for place in member.places]
        local = [place for place in places if not is_hub_id(place)]
        if local:
            warnings.warn(
                f"{local} mean nothing on another machine: whoever loads '{repo_id}' must name the members themselves, "
                f"lmcompose.load('{repo_id}', members={{...}}). Push the members first and compose their hub ids.",
                stacklevel=2,
            )
        kwargs.setdefault("commit_message", "Upload composition")
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / repo_id.rsplit("/", 1)[-1]
            self.save_pretrained(target)
            return upload(target, repo_id, **kwargs)

    def _model_card(self, folder: str) -> str:
        return model_card(
            folder=folder,
            model_type=self.config.model_type,
            summary=self.summary,
            parameters=self.num_composition_parameters(),
            members=self.config.references(),
            details=self._card_details(),
        )

    def _card_details(self) -> dict[str, dict[str, Any]]:
        return {"How it was made": {**(self.config.provenance or {}), "versions": versions()}}

    @classmethod
    def _load(
        cls, config: ComposedConfig, saved: str, replaced: Mapping[str, Source], **options: Any
    ) -> tuple[dict[str, Member], dict[str, Any]]:
        """The members of a saved composition, and what else its constructor takes."""
        return load_members(config, saved, replaced, **options), {}

    @classmethod
    def from_pretrained(  # type: ignore[override]  # members in place of a checkpoint's own options
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        config: ComposedConfig | None = None,
        members: Mapping[str, Source] | None = None,
        dtype: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
        device_map: Any = None,
        composition_dtype: torch.dtype | None = None,
        attn_implementation: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        quantization: Any = None,
        use_safetensors: bool | None = True,
        **kwargs: Any,
    ) -> Self:
        """Load a saved composition and the members that it names.

        Args:
            pretrained_model_name_or_path: a saved folder, or a hub id.
            members: role -> model to use in place of the saved name: a moved folder or a live model.
            dtype: of the members, or role -> dtype; by default what they had when the composition was saved.
            device_map: of the members, as transformers has it; or role -> device or device map.
            composition_dtype: of the composition parameters; by default as saved.
            trust_remote_code: let code run that comes with a member. This is never saved: say it at every load.
            quantization: "4bit", "8bit", "none" or a BitsAndBytesConfig, for all members or role -> one of these; what
                is not said is as it was saved.
            use_safetensors: False to read members whose weights are pickles; never saved either.
            kwargs: handed on to each member's own `from_pretrained`.

        Raises:
            SavedFolderError: files are missing, cut short, or of a later format.
            WrongBaseError: a member is not the model that the composition was saved with.
        """
        if kwargs.pop("quantization_config", None) is not None:
            raise ConfigurationError(
                "One quantization_config cannot serve all members. Give it by role: lmcompose.load(folder, "
                "quantization={'anchor': '4bit'}), with a word or a BitsAndBytesConfig."
            )
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("_")}
        saved = str(pretrained_model_name_or_path)
        config = config if isinstance(config, cls.config_class) else read_config(cls.config_class, saved, revision)
        check_format(config, saved)
        tensors = read_tensors(saved, revision)
        loaded, others = cls._load(
            config,
            saved,
            members or {},
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            quantization=quantization,
            use_safetensors=use_safetensors,
            **kwargs,
        )
        if attn_implementation is not None:
            config._attn_implementation = attn_implementation
        with unharmed(loaded):
            model = cls(config, loaded, **others)
        try:
            put_tensors(dict(model.composition_parameters()), tensors, saved, composition_dtype)
        except SavedFolderError:
            model.detach()  # live members go unharmed
            raise
        model.name_or_path = saved
        with contextlib.suppress(OSError):  # without a file of its own, the leader's generation settings stay
            model.generation_config = GenerationConfig.from_pretrained(saved, revision=revision or "main")
        return model
