"""The loss of texts after a prompt, under one model."""

from collections.abc import Sequence
from typing import Any, cast

import torch

from lmcompose.evaluation.opening import Loading
from lmcompose.evaluation.texts import continuation_ids
from lmcompose.loading import Source


class Losses:
    """One model that reads.

    Args:
        source: anything that can be evaluated.
        loading: how it is loaded; it reads one text at a time.

    Raises:
        MemberError, SavedFolderError: the model cannot be loaded.
        ConfigurationError: it has no tokenizer.
    """

    def __init__(self, source: Source, loading: Loading | None = None) -> None:
        self.model, self.tokenizer = (loading or Loading()).model(source)

    @torch.no_grad()
    def of(self, prompt: str, texts: Sequence[str]) -> tuple[float, int]:
        """The loss in nats of all `texts` after `prompt`, and how many tokens they are; empty texts have none."""
        nats, tokens = 0.0, 0
        before = list(self.tokenizer(prompt)["input_ids"])
        for text in texts:
            if not text:
                continue
            after = continuation_ids(self.tokenizer, prompt, before, text)
            ids = torch.tensor([before + after], device=self.model.device)
            given = {"prompt_length": len(before)} if getattr(self.model, "reads_prompts", False) else {}
            logits = cast(Any, self.model)(ids, use_cache=False, **given).logits[0, len(before) - 1 : -1]
            chosen = logits.float().log_softmax(dim=-1).gather(-1, ids[0, len(before) :, None])
            nats, tokens = nats - float(chosen.double().sum()), tokens + len(after)
        return nats, tokens
