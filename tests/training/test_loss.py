"""Logits are computed where something is learned, and the loss and its gradients are those of all logits."""

from pathlib import Path

import pytest
import torch
from transformers import Trainer
from transformers.loss.loss_utils import ForCausalLMLoss

from lmcompose.training.loss import learned_columns, learned_loss, shifted, takes_columns
from lmcompose.training.ordered import OrderedTrainer
from lmcompose.training.packing import IGNORED, Collator
from tests.compositions import random_composition
from tests.tiny import DEFAULT_PAIRS, PAIRS, architecture_params, tiny_model
from tests.training.test_trainer import Documents, arguments, logged

LABELS = torch.tensor([[IGNORED, IGNORED, 5, 6, IGNORED, IGNORED], [IGNORED, IGNORED, IGNORED, 7, 8, IGNORED]])


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def test_the_columns_are_those_before_a_learned_token() -> None:
    columns, targets = learned_columns(LABELS)
    assert isinstance(columns, torch.Tensor)
    assert columns.tolist() == [1, 2, 3]
    assert targets.tolist() == [[5, 6, IGNORED], [IGNORED, 7, 8]]


@pytest.mark.parametrize("learned", ["everything", "nothing", "all but the first"])
def test_all_columns_are_kept_where_leaving_some_out_is_worth_nothing(learned: str) -> None:
    labels = torch.arange(1, 13).reshape(2, 6)
    labels[:, {"everything": [], "nothing": list(range(6)), "all but the first": [0]}[learned]] = IGNORED
    columns, targets = learned_columns(labels)
    assert columns == 0
    assert torch.equal(targets, shifted(labels))


@pytest.mark.parametrize("count", [None, 11, torch.tensor(11)])
def test_the_loss_is_that_of_transformers(count: int | torch.Tensor | None) -> None:
    logits = torch.randn(2, 6, 20, generator=torch.Generator().manual_seed(0))
    columns, targets = learned_columns(LABELS)
    expected = ForCausalLMLoss(logits, LABELS, vocab_size=20, num_items_in_batch=count)
    torch.testing.assert_close(learned_loss(Output(logits[:, columns]), targets, count), expected)


@pytest.mark.parametrize("arch", architecture_params())
def test_a_plain_model_learns_as_with_all_logits(arch: str, tmp_path: Path) -> None:
    seen = []
    for kind in (Trainer, OrderedTrainer):
        model = tiny_model(arch)
        model.requires_grad_(True)
        widths = _head_widths(model)
        trainer = kind(
            model=model,
            args=arguments(tmp_path, max_steps=2, train_sampling_strategy="sequential", gradient_accumulation_steps=2),
            train_dataset=Documents(24),
            data_collator=Collator(0),
        )
        trainer.train()
        seen.append((logged(trainer, "loss"), logged(trainer, "grad_norm"), widths))
    (losses, norms, whole), (own_losses, own_norms, kept) = seen
    assert own_losses == pytest.approx(losses, rel=1e-5)
    assert own_norms == pytest.approx(norms, rel=1e-4)
    assert len(kept) == len(whole) == 4
    assert (sum(kept) < sum(whole)) == takes_columns(tiny_model(arch))


@pytest.mark.parametrize("name", DEFAULT_PAIRS)
def test_a_composition_learns_as_with_all_logits(name: str) -> None:
    batch = Collator(0)(Documents(4).rows)
    columns, targets = learned_columns(batch["labels"])
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    gradients = []
    for kept in (False, True):
        model = random_composition(PAIRS[name])
        assert takes_columns(model)
        model.train()
        if kept:
            loss = learned_loss(model(**inputs, logits_to_keep=columns, use_cache=False), targets)
        else:
            loss = model(**batch).loss
        loss.backward()
        gradients.append((loss.detach(), {key: value.grad for key, value in model.composition_parameters()}))
    (loss, whole), (own_loss, own) = gradients
    torch.testing.assert_close(own_loss, loss)
    for key, gradient in whole.items():
        assert gradient.abs().max() > 1e-6, key
        torch.testing.assert_close(own[key], gradient, atol=1e-6, rtol=1e-4)


def test_a_model_that_balances_its_experts_keeps_its_own_loss() -> None:
    model = tiny_model("mixtral")
    assert takes_columns(model)
    model.config.output_router_logits = True
    assert not takes_columns(model)


def _head_widths(model: torch.nn.Module) -> list[int]:
    """Positions that each training pass runs the head at."""
    widths: list[int] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    return widths
