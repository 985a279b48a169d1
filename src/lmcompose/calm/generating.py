"""How `generate` runs a CALM composition: the cache of its bridges, texts in other tokens, and what the prompt is."""

from typing import Any, cast

import torch
from transformers import Cache

from lmcompose.alignment.rows import Rows
from lmcompose.alignment.spans import Aligner
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.cache import ComposedCache
from lmcompose.calm.config import CalmConfig
from lmcompose.errors import CacheError
from lmcompose.generation import ComposedGenerationMixin, cache_for


class CalmGenerationMixin(ComposedGenerationMixin):
    """`ComposedGenerationMixin` for augmenting models with bridges."""

    config: CalmConfig
    _aligners: dict[str, Aligner]

    @property
    def reads_prompts(self) -> bool:
        """Whether an augmenting model reads the prompt alone, so that passes must know what the prompt is."""
        return bool(self.config.prompt_readers())

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """HF's `generate`. For augmenting models that read the prompt, the prompt is what is given here."""
        if self.reads_prompts and kwargs.get("prompt_length") is None:
            kwargs["prompt_length"] = given_length(inputs, kwargs)
        return super().generate(inputs, *args, **kwargs)

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        """HF's, which hands the arguments of `forward` on to a drafting model, and that one has a prompt of its own."""
        given = kwargs.get("model_kwargs")
        if given is not None:
            kwargs["model_kwargs"] = {name: value for name, value in given.items() if name != "prompt_length"}
        return cast(Any, super())._get_candidate_generator(*args, **kwargs)

    def _has_own_tokens(self, role: str) -> bool:
        return self.config.has_own_tokens(role)

    def new_cache(self, max_cache_len: int | None = None, *, windows: bool = True) -> ComposedCache:
        """An empty cache: the anchor's layers, the augmenting models' layers, then one layer per bridge."""
        if self._aligners:
            max_cache_len = None  # what a model reads in tokens of its own has no length that is known before
        members = super().new_cache(max_cache_len, windows=windows).members
        members |= {name: cache_for(self.member(name), None, windows=False) for name in self._aligners}
        bridges = {name: len(self.config.pairs(name)) for name in self.config.augmenting_names()}
        return ComposedCache(
            members,
            bridges,
            max_cache_len,
            texts={name: Rows(each) for name, each in self._aligners.items()},
            prompt_readers=self.config.prompt_readers(),
        )

    def _composed_cache(self, cache: Cache | None, use_cache: bool) -> ComposedCache | None:
        if self._aligners and cache is not None and not isinstance(cache, ComposedCache):
            raise CacheError(
                f"A {type(cache).__name__} cannot follow models that read the text in tokens of their own. Pass "
                "model.new_cache(), the cache that an earlier pass returned, or none at all."
            )
        return super()._composed_cache(cache, use_cache)


def given_length(inputs: torch.Tensor | None, arguments: dict[str, Any]) -> int:
    """How many columns a generation starts from: the prompt. A drafting model goes on with the prompt that it began."""
    cache: Any = arguments.get(CACHE_ARGUMENT)
    begun = getattr(cache, "prompt_length", None)
    if begun is not None and getattr(arguments.get("generation_config"), "is_assistant", False):
        return int(begun)
    ids = inputs if inputs is not None else arguments.get("input_ids")
    return 1 if ids is None else int(ids.shape[1])
