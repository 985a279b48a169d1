"""A tiny text classifier of random weights, saved as a user would have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.tiny import VOCAB_SIZE, tiny_tokenizer


def save_classifier(folder: Path, **config: Any) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    labels = {0: "neutral", 1: "toxic", 2: "odd"}
    torch.manual_seed(0)
    given = {"id2label": labels, "label2id": {name: at for at, name in labels.items()}, **config}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=VOCAB_SIZE, initializer_range=1.0, max_position_embeddings=16, **sizes, **given)
    )
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    return folder
