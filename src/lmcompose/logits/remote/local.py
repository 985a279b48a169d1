"""The members that are here: each reads one text, with a cache, and goes back where a draft was not kept.

This file knows no server and no formula.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from lmcompose.architecture import CACHE_ARGUMENT, position_limit, run_with_head, text_config
from lmcompose.errors import ConfigurationError, TokenizerMismatchError
from lmcompose.generation import cache_for


class Reader:
    """One member reading one text.

    Args:
        model: in evaluation mode.
        size: how many tokens the shared tokenizer has; padded rows behind them are cut off.
    """

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self.model = model
        self.size = size
        self._read: list[int] = []
        self._cache: Cache | None = None

    @torch.no_grad()
    def logits(self, ids: Sequence[int], last: int = 1) -> Tensor:
        """The logits after each of the last `last` tokens of `ids`: [last, size] float32 on the CPU.

        Whatever was read before is not read again, so far as it is the beginning of `ids`.
        """
        ids = list(ids)
        keep = min(_common(self._read, ids), len(ids) - last)
        if self._cache is None or not self._go_back(len(self._read) - keep):
            self._cache, keep = cache_for(self.model, None), 0
            self._cache.activate_past_recording()
        self._read = []  # a pass that fails leaves a cache of unknown length
        new = torch.tensor([ids[keep:]], device=self.model.device)
        arguments = {CACHE_ARGUMENT: self._cache, "use_cache": True, "logits_to_keep": last}
        output = run_with_head(self.model, input_ids=new, **arguments)
        self._read = ids
        assert output.logits is not None
        return output.logits[0, -last:, : self.size].float().cpu()

    def _go_back(self, tokens: int) -> bool:
        """Forget the last `tokens` tokens; False where the cache cannot, as that of a state-space model."""
        assert self._cache is not None
        if not self._read or tokens == len(self._read):
            return False
        try:
            self._cache.crop(-tokens)  # 0 too: sliding windows then let go of what has left the window
        except (RuntimeError, NotImplementedError, AttributeError):
            return False
        return True


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens two texts share."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def check_rows(model: PreTrainedModel, role: str, size: int) -> None:
    """Refuse a member with fewer token ids than the tokenizer has.

    Raises:
        TokenizerMismatchError: it is so.
    """
    rows = text_config(model).vocab_size
    if rows < size:
        raise TokenizerMismatchError(
            f"The {role} has {rows} token ids and the base's tokenizer has {size}, so they cannot mean the same. "
            "Choose members of the base's family, and pass each with its tokenizer: (model, tokenizer)."
        )


def check_length(model: PreTrainedModel, role: str, length: int) -> None:
    """Refuse a text that a member has no positions for.

    Raises:
        ConfigurationError: `length` tokens are too many.
    """
    limit = position_limit(model)
    if limit is not None and length > limit:
        raise ConfigurationError(
            f"The prompt and the new tokens are {length} tokens, and the {role} has positions for {limit}. Give a "
            "shorter prompt or ask for fewer new tokens."
        )
