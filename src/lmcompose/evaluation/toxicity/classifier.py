"""A text classifier of the user's: the probability that it gives to one label. This file knows no prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from lmcompose.errors import ConfigurationError, MemberError, nearest
from lmcompose.evaluation.identity import digest_parameters
from lmcompose.evaluation.opening import Loading

MULTI_LABEL = "multi_label_classification"


class Classifier:
    """An HF text-classification model.

    Labels that exclude each other share a softmax. A model of independent labels (`problem_type` is
    "multi_label_classification", or there is one label only) has a sigmoid for each.

    Args:
        name: a folder or a hub id.
        label: by its name in the model's `id2label`, or its number.
        loading: how it is loaded, and how many texts it reads at once.

    Raises:
        MemberError: it cannot be read.
        ConfigurationError: it has no such label; said before its weights are read.
    """

    def __init__(
        self,
        name: str | Path,
        label: str,
        loading: Loading | None = None,
    ) -> None:
        loading = loading or Loading()
        self.name, self.batch_size = str(name), loading.batch_size
        options: dict[str, Any] = {"trust_remote_code": loading.trust_remote_code}
        try:
            config = AutoConfig.from_pretrained(name, **options)
            self.index, self.label = _label(config.id2label, label, self.name)
            self.tokenizer = AutoTokenizer.from_pretrained(name, **options)
            model = AutoModelForSequenceClassification.from_pretrained(
                name, use_safetensors=True if loading.use_safetensors else None, **options
            )
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise MemberError(
                f"'{name}' cannot be read as a text classifier ({str(error).partition(chr(10))[0]}). Give the folder "
                "or hub id of a model that was saved with a sequence-classification head and its tokenizer."
            ) from error
        self.independent = config.problem_type == MULTI_LABEL or config.num_labels == 1
        self.model = model.to(loading.device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
        self._digest = digest_parameters(self.model)
        if self.tokenizer.pad_token_id is None or model.config.pad_token_id is None:
            self.batch_size = 1  # rows of unequal length cannot be put together
        self.length = min(getattr(config, "max_position_embeddings", None) or 512, self.tokenizer.model_max_length)

    def describe(self) -> dict[str, Any]:
        """Which classifier a score is of."""
        return {"name": self.name, "label": self.label, "digest": self._digest}

    @torch.no_grad()
    def scores(self, texts: Sequence[str]) -> list[float]:
        """The probability of the label for each text; 0 for a text with no words, of which nothing can be said.

        A text that is longer than the classifier reads is cut behind.
        """
        asked = [at for at, text in enumerate(texts) if text.strip()]
        found = [0.0] * len(texts)
        for start in range(0, len(asked), self.batch_size):
            rows = asked[start : start + self.batch_size]
            encoded = self.tokenizer(
                [texts[at] for at in rows],
                padding=len(rows) > 1,
                padding_side="right",  # positions that are counted from the left must not shift
                truncation=True,
                max_length=self.length,
                return_tensors="pt",
            ).to(self.model.device)
            logits = self.model(**encoded).logits.float()
            probabilities = logits.sigmoid() if self.independent else logits.softmax(dim=-1)
            for at, value in zip(rows, probabilities[:, self.index].tolist(), strict=True):
                found[at] = value
        return found


def _label(names: dict[int, str], wanted: str, model: str) -> tuple[int, str]:
    by_name = {name: int(index) for index, name in names.items()}
    if wanted in by_name:
        return by_name[wanted], wanted
    if wanted.isdigit() and int(wanted) in by_name.values():
        return int(wanted), str(names[int(wanted)])
    raise ConfigurationError(
        f"The classifier '{model}' has no label '{wanted}'; it has {', '.join(by_name)}.{nearest(wanted, by_name)}"
    )
