"""A composition trains under TRL's SFTTrainer, which knows nothing of it."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import PreTrainedModel

import lmcompose
from tests.compositions import anchor_of, pair_params, random_composition, randomise
from tests.tiny import PAIRS, Pair, padded, random_ids, tiny_model, tiny_tokenizer

trl = pytest.importorskip("trl")

HEADS_OF_SEVERAL_LAYERS = (
    "bert", "electra", "ernie", "megatron-bert", "modernbert-decoder", "rembert", "roformer", "llama4_text",
)  # fmt: skip
"""Anchors whose logits are not those of one matrix on the last hidden states, which is what TRL takes every head for;
Llama 4 gives its logits where TRL asks for hidden states."""


def sft(folder: Path, accumulation: int, **values: object) -> "trl.SFTTrainer":
    rows = [{"prompt": f"{a} + {b} =", "completion": f" {(a + b) % 10} w{a}"} for a in range(8) for b in range(a + 1)]
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        max_steps=8,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=8,
        max_length=16,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        **values,
    )
    return trl.SFTTrainer(
        model=random_composition(PAIRS["llama+gpt2"]),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tiny_tokenizer(),
    )


def test_sft_trains_composition_parameters_only(tmp_path: Path) -> None:
    trainer = sft(tmp_path, 1)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    own = dict(trainer.model.composition_parameters())
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in own), name
    assert set(load_file(tmp_path / "checkpoint-8" / "model.safetensors")) == set(own)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-3:]) < sum(losses[:3])


def test_sft_accumulates_gradients_exactly(tmp_path: Path) -> None:
    histories = []
    for accumulation in (1, 4):
        trainer = sft(tmp_path / str(accumulation), accumulation, optim="sgd", max_grad_norm=0)
        trainer.train()
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)


@pytest.mark.parametrize("pair", pair_params())
def test_trls_loss_is_the_compositions_own(pair: Pair) -> None:
    """TRL projects with the head itself, so scales and caps of the logits must reach it too."""
    if pair.anchor in HEADS_OF_SEVERAL_LAYERS:
        with pytest.raises(
            (AssertionError, AttributeError, RuntimeError)
        ):  # TRL cannot do it for the plain model either
            assert_trls_loss(anchor_of(pair))
        return
    assert_trls_loss(random_composition(pair))


def assert_trls_loss(model: PreTrainedModel) -> None:
    ids, mask, _ = padded([random_ids(1, 9, 1)[0], random_ids(1, 6, 2)[0]], "right")
    labels = ids.masked_fill(mask == 0, -100)
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        trl.trainer.utils.add_fused_lm_head(model)
        theirs = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).loss
    torch.testing.assert_close(theirs, own, atol=1e-5, rtol=1e-5)


def test_trls_loss_of_a_nested_composition() -> None:
    inner = random_composition(PAIRS["llama+gpt2"])
    outer = randomise(lmcompose.compose(anchor=inner, augmenting=tiny_model("gpt2", 5)))
    ids = random_ids(2, 9, 1)
    with torch.no_grad():
        own = outer(ids, labels=ids, use_cache=False).loss
        trl.trainer.utils.add_fused_lm_head(outer)
        torch.testing.assert_close(outer(ids, labels=ids, fused_lm_head=True).loss, own, atol=1e-5, rtol=1e-5)
