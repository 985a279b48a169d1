"""CALM as one language model: H_B + f_cross(f_proj(H_A), H_B) at every connection (arXiv 2401.02412, section 3.1)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Cache, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from lmcompose.alignment.rows import Rows
from lmcompose.alignment.spans import Aligner, aligner
from lmcompose.architecture import CACHE_ARGUMENT, layer_device, run_with_head
from lmcompose.cache import ComposedCache
from lmcompose.calls import CallSlot
from lmcompose.calm.attach import hook_layers
from lmcompose.calm.body import Body
from lmcompose.calm.bridge import Bridge
from lmcompose.calm.config import ANCHOR, CalmConfig
from lmcompose.calm.generating import CalmGenerationMixin
from lmcompose.calm.own_tokens import OwnPass, read_at_once, read_on
from lmcompose.calm.prompts import PromptPass, prompt_of, prompt_pass
from lmcompose.calm.reading import Read, Reader
from lmcompose.calm.unfrozen import Unfrozen
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.generation import positions_of
from lmcompose.loading import Member, Source
from lmcompose.saved import read_config


class CalmForCausalLM(CalmGenerationMixin, ComposedModel):
    """An anchor that cross-attends to the hidden states of frozen augmenting models.

    Position t of the anchor attends to augmenting positions up to t; of a model with a tokenizer of its own, to those
    of its tokens that are final given the text up to the end of t (see `alignment.spans`).

    Args:
        config: see `CalmConfig`.
        members: `anchor` first, then the augmenting models by name.
        generator: source of the initial composition parameters.

    Raises:
        ConfigurationError: the configuration cannot be built.
    """

    config: CalmConfig
    config_class = CalmConfig
    summary = "CALM: an anchor model that cross-attends to the hidden states of augmenting models (arXiv 2401.02412)."

    def __init__(
        self,
        config: CalmConfig,
        members: Mapping[str, Member],
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        config.check()
        super().__init__(config, members)
        self._left_out: tuple[str, ...] = ()
        self._anchor_slot = CallSlot()
        self._readers = {name: Reader(name, config.pairs(name)) for name in config.augmenting_names()}
        self._aligners: dict[str, Aligner] = {
            name: aligner(
                members[ANCHOR].tokenizer,
                members[name].tokenizer,
                members[ANCHOR].reference.name_or_path,
                members[name].reference.name_or_path,
            )
            for name in config.augmenting_names()
            if config.has_own_tokens(name)
        }
        references = config.references()
        width = references[ANCHOR].hidden_size
        self.bridges = nn.ModuleDict()
        for name in config.augmenting_names():
            for pair in config.pairs(name):
                bridge = Bridge(references[name].hidden_size, width, config.num_heads or 1, **config.bridge_options())
                bridge.reset_parameters(config.bridge_initializer_range, generator)
                self.bridges[bridge_key(name, *pair)] = bridge.to(
                    device=layer_device(self.anchor, pair[1]), dtype=dtype
                )
        models = {role: member.model for role, member in members.items()}
        self.unfrozen = Unfrozen(config.unfreeze or {}, models, dtype)
        self._finish_init()

    @property
    def anchor(self) -> PreTrainedModel:
        """The large general model, m_B."""
        return self.member(ANCHOR)

    @property
    def augmenting(self) -> dict[str, PreTrainedModel]:
        """The small specialised models, m_A, by name."""
        return {name: self.member(name) for name in self.config.augmenting_names()}

    def bridge(self, name: str, augmenting_layer: int, anchor_layer: int) -> Bridge:
        """The bridge of one connection of the augmenting model `name`."""
        return cast(Bridge, self.bridges[bridge_key(name, augmenting_layer, anchor_layer)])

    @contextmanager
    def without(self, *names: str) -> Iterator[Self]:
        """Within the block, the named augmenting models are not run and contribute nothing.

        The logits are, bit for bit, those of the composition that never had them. Blocks nest and add up; with all of
        them left out, the composition is its anchor, as in `disable()`. A cache that was filled without a model is
        refused once that model runs again. As `disable()`, it holds for all threads, and a compiled forward notices it.

        Raises:
            ConfigurationError: a name that is no augmenting model's.

        Example:
            >>> with model.without("law"):  # doctest: +SKIP
            ...     model.generate(**inputs)
        """
        known = self.config.augmenting_names()
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"There is no augmenting model '{name}' to leave out; they are {known}.{nearest(name, known)}"
                )
        before, self._left_out = self._left_out, tuple(name for name in known if name in (*self._left_out, *names))
        try:
            yield self
        finally:
            self._left_out = before

    def _running(self) -> list[str]:
        """The augmenting models that a pass runs now, in the order in which their contributions add."""
        if self._disabled:
            return []
        return [name for name in self.config.augmenting_names() if name not in self._left_out]

    def _hook_members(self) -> list[Any]:
        handles = []
        for name, model in self.augmenting.items():
            handles += self._readers[name].hook(model)
        for role in self.unfrozen.roles:
            handles += self.unfrozen.hook(role, self.member(role))
        written = [pair[1] for name in self.augmenting for pair in self.config.pairs(name)]
        return handles + hook_layers(self.anchor, written, self._anchor_slot)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        prompt_length: int | None = None,
        prompt_mask: torch.Tensor | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """One pass of all members over new tokens.

        Args:
            input_ids: [batch, new].
            attention_mask: [batch, all positions so far], 0 at padding; without it nothing is padding.
            position_ids: [batch, new]; worked out from the mask when left out. Without a mask and a cache, positions
                that start again at 0 mark packed documents, which never attend to each other.
            use_cache: whether to return a cache; by default outside training, and without labels.
            cache: what an earlier pass returned (`past_key_values` in transformers before 5.24; both are taken).
            labels: [batch, new], -100 where no loss is wanted; shifted here, as everywhere in HF.
            logits_to_keep: how many last positions need logits (0 = all), or which.
            prompt_length: columns of the prompt with its padding, for augmenting models that read nothing after it. By
                default, what comes before the first learned label; without labels, all of a first pass.
            prompt_mask: [batch, new], true at the prompts of whole texts, where they are not of one length.
            num_items_in_batch: labels in the whole accumulated batch, to divide the summed loss by.

        Returns:
            loss (where labels are given), logits [batch, kept, vocabulary] and the cache.

        Raises:
            ConfigurationError: `inputs_embeds` were given, the composition is detached, or the text is longer than a
                member's table of positions.
            CacheError: the cache is not this composition's.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ConfigurationError("A composition reads input_ids: its members embed the same tokens differently.")
        if not self.is_attached:
            raise ConfigurationError("This composition is detached from its members. Call attach() to use it again.")
        if use_cache is None:
            # nobody goes on from a pass with labels, and transformers looks for packed documents only without a cache
            use_cache = self.config.use_cache and not self.training and labels is None and prompt_mask is None
        composed = self._composed_cache(cache if cache is not None else past_key_values, use_cache)
        if composed is not None:
            composed.begin_pass(self._running())
        inputs = self._member_inputs(input_ids, attention_mask, position_ids, composed, use_cache)
        if self.reads_prompts and labels is not None and prompt_length is None and prompt_mask is None:
            prompt_mask = prompt_of(labels, attention_mask, position_ids)
        inputs |= {"prompt_length": prompt_length, "prompt_mask": prompt_mask}
        head = {
            "logits_to_keep": logits_to_keep,
            "output_hidden_states": output_hidden_states,
            "output_attentions": output_attentions,
        }
        with self._anchor_slot.during(self._writer(inputs, composed)), self._unfrozen(ANCHOR):
            output = run_with_head(self.anchor, **inputs, **head, **_view(composed, ANCHOR))
        logits = cast(torch.Tensor, output.logits)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            **{CACHE_ARGUMENT: composed},
        )
        return result if return_dict is not False else result.to_tuple()

    @property
    def base_model(self) -> Any:
        """The composition without its head, for losses that apply `get_output_embeddings()` themselves."""
        return Body(self)

    @contextmanager
    def writing(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> Iterator[dict[str, Any]]:
        """Within the block, an uncached run of the anchor with the yielded inputs is one of the composition."""
        if self.reads_prompts:
            raise ConfigurationError(
                "This trainer does not say which tokens are learned, and an augmenting model with reads='prompt' must "
                "know. Train with lmcompose's own CalmTrainer, or with transformers' Trainer."
            )
        inputs = self._member_inputs(input_ids, attention_mask, position_ids)
        with self._anchor_slot.during(self._writer(inputs, None)), self._unfrozen(ANCHOR):
            yield inputs

    def _unfrozen(self, role: str) -> AbstractContextManager[None]:
        return self.unfrozen.running(role, enabled=not self._disabled)

    def _member_inputs(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: ComposedCache | None = None,
        use_cache: bool = False,
    ) -> dict[str, Any]:
        """What every member is called with, checked against the lengths that they take."""
        if position_ids is None:
            position_ids = positions_of(attention_mask, input_ids.shape[1])
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "use_cache": use_cache,
        }
        running = [ANCHOR, *self._running()]
        self._check_length(inputs, cache, [role for role in running if not self._reads_otherwise(role)])
        return inputs

    def _reads_otherwise(self, role: str) -> bool:
        """Whether a member reads something else than the anchor: its length is checked where it is read."""
        return self._has_own_tokens(role) or self.config.reads_prompt(role)

    def _writer(
        self, inputs: dict[str, Any], cache: ComposedCache | None
    ) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Run the augmenting models; returns what this pass does at each connected anchor layer."""
        names = self._running()
        if not names:
            return _leave_alone
        prompt = prompt_pass(inputs, cache) if any(self.config.reads_prompt(name) for name in names) else None
        reads = {name: self._read(name, inputs, cache, prompt) for name in names}
        if cache is not None and prompt is not None:
            cache.prompt_read += prompt.count

        def write(layer: int, hidden_states: torch.Tensor) -> torch.Tensor:
            written = hidden_states
            for name in names:
                # contributions add: each bridge's queries come from what the anchor itself had here
                for added in self._readers[name].added(reads[name], layer, hidden_states, self.bridge, cache):
                    written = written + added
            return written

        return write

    def _read(self, name: str, inputs: dict[str, Any], cache: ComposedCache | None, prompt: PromptPass | None) -> Read:
        """Run one augmenting model over what is new."""
        implementation = self.config._attn_implementation
        other: OwnPass | PromptPass
        if self._has_own_tokens(name):
            if cache is None:
                other = read_at_once(self._aligners[name], inputs)
            else:
                other = read_on(cast(Rows, cache.texts[name]), name, inputs, cache)
        elif prompt is not None and self.config.reads_prompt(name):
            other = prompt
        else:
            mask = self._bridge_mask(name, inputs, cache)
            return Read(self._augmenting_states(name, inputs, cache), mask, implementation)
        states = {}
        if other.inputs is not None:
            self._check_length(other.inputs, None if cache is None else cache.members[name], [name])
            states = self._augmenting_states(name, other.inputs, cache)
        implementation = implementation if implementation == "eager" else "sdpa"  # others take no mask of any form
        dtype = self.bridge(name, *self.config.pairs(name)[0]).dtype
        return Read(states, other.mask(implementation, dtype, self.device), implementation, other.seeing)

    def _augmenting_states(
        self, name: str, inputs: dict[str, Any], cache: ComposedCache | None
    ) -> dict[int, torch.Tensor]:
        """H_A [batch, new, D_A] of every connected layer; without a graph, unless a layer of the model is unfrozen."""
        with self._unfrozen(name):
            learns = name in self.unfrozen.roles
            return self._readers[name].states(self.member(name), inputs, cache, learns)

    def _bridge_mask(self, name: str, inputs: dict[str, Any], cache: ComposedCache | None) -> torch.Tensor | None:
        """The causal and padding mask of all bridges to one augmenting model, in the form the attention takes."""
        batch, new = inputs["input_ids"].shape
        dtype = self.bridge(name, *self.config.pairs(name)[0]).dtype
        return create_causal_mask(
            config=self.config,
            inputs_embeds=torch.empty((batch, new, 0), dtype=dtype, device=self.device),
            attention_mask=inputs["attention_mask"],
            position_ids=inputs["position_ids"],
            **{CACHE_ARGUMENT: cache.bridges[name] if cache is not None else None},
        )

    def _card_details(self) -> dict[str, dict[str, Any]]:
        built = {key: getattr(self.config, key) for key in ("connections", "num_heads", "projection")}
        return {
            "Connections (augmenting layer, anchor layer)": built,
            "Bridges, beyond the paper": self.config.beyond_the_paper(),
            "Augmenting models that read the prompt alone": {"reads": self.config.reads} if self.config.reads else {},
            "Unfrozen layers, of which this folder holds the weights": self.config.unfreeze or {},
            **super()._card_details(),
        }

    @classmethod
    def from_pretrained(  # type: ignore[override]  # members in place of a checkpoint's own options
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        anchor: Source | None = None,
        augmenting: Source | Mapping[str, Source] | None = None,
        members: Mapping[str, Source] | None = None,
        **kwargs: Any,
    ) -> Self:
        """`ComposedModel.from_pretrained`, where `anchor` and `augmenting` replace the saved names of the members."""
        replaced = dict(members or {})
        if anchor is not None:
            replaced[ANCHOR] = anchor
        if isinstance(augmenting, Mapping):
            replaced.update(augmenting)
        elif augmenting is not None:
            config = kwargs.get("config") or read_config(
                cls.config_class, str(pretrained_model_name_or_path), kwargs.get("revision")
            )
            kwargs["config"] = config
            if len(config.augmenting_names()) != 1:
                raise ConfigurationError(
                    f"There are several augmenting models, {config.augmenting_names()}: pass a dict name -> model."
                )
            replaced[config.augmenting_names()[0]] = augmenting
        return super().from_pretrained(pretrained_model_name_or_path, members=replaced, **kwargs)


def bridge_key(name: str, augmenting_layer: int, anchor_layer: int) -> str:
    """The name of a bridge among the parameters."""
    return f"{name}_{augmenting_layer}_{anchor_layer}"


def _leave_alone(layer: int, hidden_states: torch.Tensor) -> torch.Tensor:
    return hidden_states


def _view(cache: ComposedCache | None, role: str) -> dict[str, Cache]:
    return {CACHE_ARGUMENT: cache.members[role]} if cache is not None else {}


AutoModelForCausalLM.register(CalmConfig, CalmForCausalLM, exist_ok=True)
