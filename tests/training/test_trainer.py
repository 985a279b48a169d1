"""CalmTrainer trains composition parameters and nothing else, and its losses are what they say they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

import lmcompose
from lmcompose import CalmForCausalLM
from lmcompose.architecture import decoder_layers, hidden_states_of
from lmcompose.errors import ConfigurationError, LmcomposeError, SavedFolderError
from lmcompose.training.arguments import _FIELDS
from lmcompose.training.checkpoints import checkpoints, is_whole
from lmcompose.training.packing import IGNORED, Collator, packed_row
from lmcompose.training.trainer import CalmTrainer
from tests.compositions import random_composition
from tests.tiny import DEFAULT_PAIRS, PAIRS, Pair, random_ids, tiny_model

CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in _FIELDS else "gradient_checkpointing"


class Documents(Dataset):
    """Random documents of unequal length, so that a mean of means is not the mean; half of the labels are masked."""

    in_order = True

    def __init__(self, count: int, seed: int = 0, packed: bool = False, longest: int = 12) -> None:
        lengths = np.random.default_rng(seed).integers(3, longest, size=count)
        self.rows: list[dict[str, np.ndarray]] = []
        for number, length in enumerate(lengths):
            ids = random_ids(1, int(length), seed=1000 * seed + number)[0].numpy()
            labels = np.where(np.arange(length) < length // 2, IGNORED, ids)
            self.rows.append(packed_row([(ids, labels)] * 2) if packed else {"input_ids": ids, "labels": labels})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.rows[index]


def arguments(folder: Path, **values: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        **{
            "max_steps": 3,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            **values,
        },
    )


def trainer_of(model: CalmForCausalLM, folder: Path, count: int = 24, **values: Any) -> CalmTrainer:
    callbacks = values.pop("callbacks", None)
    evaluated = values.pop("eval_dataset", None)
    packed = values.pop("packed", False)
    rate = values.pop("unfrozen_learning_rate", None)
    return CalmTrainer(
        model=model,
        args=arguments(folder, **values),
        train_dataset=Documents(count, packed=packed),
        eval_dataset=evaluated,
        data_collator=Collator(0),
        callbacks=callbacks,
        unfrozen_learning_rate=rate,
    )


def logged(trainer: CalmTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.fixture
def model() -> CalmForCausalLM:
    return random_composition(PAIRS["llama+gpt2"])


def test_only_composition_parameters_are_optimised_and_members_stay_bit_for_bit(
    model: CalmForCausalLM, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = trainer_of(model, tmp_path, weight_decay=0.1)
    trainer.train()
    own = dict(model.composition_parameters())
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(parameter) for parameter in own.values()}
    assert {id(parameter) for parameter in trainer.optimizer.state} <= optimised
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in own), name


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pieces", [2, 4])
def test_gradient_accumulation_is_the_big_batch(tmp_path: Path, pieces: int, packed: bool) -> None:
    results = []
    for accumulation in (1, pieces):
        model = random_composition(PAIRS["llama+gpt2"])
        trainer = trainer_of(
            model,
            tmp_path,
            packed=packed,
            per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation,
            optim="sgd",  # Adam divides by the gradient's size and would hide a wrong scale
            learning_rate=0.1,
            max_grad_norm=0,
        )
        trainer.train()
        results.append((logged(trainer, "loss"), logged(trainer, "grad_norm"), dict(model.composition_parameters())))
    (losses, norms, whole), (losses_pieces, norms_pieces, in_pieces) = results
    assert losses == pytest.approx(losses_pieces, rel=1e-5)
    assert norms == pytest.approx(norms_pieces, rel=1e-4)
    for name, parameter in whole.items():
        torch.testing.assert_close(parameter, in_pieces[name], atol=1e-5, rtol=1e-4)


def test_the_logged_loss_is_the_mean_over_learned_tokens(model: CalmForCausalLM, tmp_path: Path) -> None:
    rows = Documents(24).rows[:4]
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids, labels = torch.from_numpy(row["input_ids"]), torch.from_numpy(row["labels"])
            logits = model(ids[None], use_cache=False).logits[0, :-1]
            total += float(torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=IGNORED, reduction="sum"))
            count += int((labels[1:] != IGNORED).sum())
    trainer = trainer_of(model, tmp_path, max_steps=1)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_the_evaluation_loss_does_not_depend_on_the_batch(model: CalmForCausalLM, tmp_path: Path, batch: int) -> None:
    held_out = Documents(10, seed=5)
    trainer = trainer_of(model, tmp_path, eval_dataset=held_out, per_device_eval_batch_size=batch)
    everything = Collator(0)(held_out.rows)
    with torch.no_grad():
        expected = float(model(**everything, use_cache=False).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


CHECKPOINTED = [name for name in DEFAULT_PAIRS if tiny_model(PAIRS[name].anchor).supports_gradient_checkpointing]


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    batch = Collator(0)(Documents(4).rows)
    gradients = []
    for checkpointing in (False, True):
        model = random_composition(PAIRS[name])
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        runs = _count_forwards(model)
        model(**batch).loss.backward()
        assert runs() == 1 + checkpointing
        gradients.append({key: parameter.grad for key, parameter in model.composition_parameters()})
    for key, gradient in gradients[0].items():
        assert gradient.abs().max() > 1e-6, key
        torch.testing.assert_close(gradients[1][key], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_the_trainer_turns_checkpointing_on_with_the_same_gradient_norms(tmp_path: Path, packed: bool) -> None:
    norms = []
    for checkpointing in (False, True):
        model = random_composition(PAIRS["gemma3+llama"])
        trainer = trainer_of(model, tmp_path, max_steps=2, packed=packed, **{CHECKPOINTING: checkpointing})
        runs = _count_forwards(model)
        trainer.train()
        assert runs() == 2 * (1 + checkpointing)
        norms.append(logged(trainer, "grad_norm"))
    assert min(norms[0]) > 1e-3
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def _count_forwards(model: CalmForCausalLM) -> Callable[[], int]:
    """How often a part of the last layer of the anchor is run (hooks on the layer itself are not always recomputed)."""
    calls: list[int] = []
    part = next(module for module in decoder_layers(model.anchor)[-1].modules() if not list(module.children()))
    part.register_forward_pre_hook(lambda *_: calls.append(1))
    return lambda: len(calls)


def test_bf16_members_under_an_fp32_bridge(tmp_path: Path) -> None:
    model = random_composition(PAIRS["llama+gpt2"], torch.bfloat16)
    trainer = trainer_of(model, tmp_path, max_steps=30)
    trainer.train()
    assert {parameter.dtype for _, parameter in model.composition_parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in model.members.parameters()} == {torch.bfloat16}
    assert {value.dtype for state in trainer.optimizer.state.values() for value in state.values()} == {torch.float32}
    losses = logged(trainer, "loss")
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_bf16_autocast_over_fp32_parameters(model: CalmForCausalLM, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, bf16=True)
    trainer.train()
    assert {parameter.dtype for _, parameter in model.composition_parameters()} == {torch.float32}
    assert np.isfinite(logged(trainer, "loss")).all()


def test_no_graph_through_the_augmenting_model_nor_below_the_first_connection() -> None:
    model = lmcompose.compose(
        anchor=tiny_model("llama", 0, num_hidden_layers=4), augmenting=tiny_model("llama", 1), connections=[(2, 3)]
    ).train()
    seen: dict[str, bool] = {}
    for role, member in model.members.items():
        for number, layer in enumerate(decoder_layers(member), start=1):
            layer.register_forward_hook(
                lambda _m, _i, out, key=f"{role} {number}": seen.update({key: hidden_states_of(out).requires_grad})
            )
    ids = random_ids(2, 6)
    model(input_ids=ids, labels=ids).loss.backward()
    assert [key for key, wants_grad in seen.items() if wants_grad] == ["anchor 3", "anchor 4"] or [
        key for key, wants_grad in seen.items() if wants_grad
    ] == ["anchor 4"]  # whether our hook on layer 3 runs before or after the bridge's


def test_a_checkpoint_holds_composition_parameters_only(model: CalmForCausalLM, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, save_strategy="steps", save_steps=3)
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    assert set(saved) == {name for name, _ in model.composition_parameters()}
    size = sum(file.stat().st_size for file in (tmp_path / "checkpoint-3").iterdir())
    assert size < 4 * 4 * model.num_composition_parameters() + 60_000


def test_save_model_can_be_loaded_again(tmp_path: Path) -> None:
    pair = Pair("llama", "gpt2")
    model = random_composition(pair)
    trainer = trainer_of(model, tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    from tests.compositions import anchor_of, augmenting_of

    again = lmcompose.load(tmp_path / "saved", anchor=anchor_of(pair), augmenting=augmenting_of(pair))
    ids = random_ids(2, 8)
    with torch.no_grad():
        assert torch.equal(again(ids, use_cache=False).logits, model.eval()(ids, use_cache=False).logits)


def test_the_best_checkpoint_is_put_back_and_stops_the_run(model: CalmForCausalLM, tmp_path: Path) -> None:
    """A learning rate that soon does harm: the run stops early, and the best parameters are those in place."""
    trainer = trainer_of(
        model,
        tmp_path,
        count=400,
        max_steps=100,
        learning_rate=0.3,
        max_grad_norm=0,
        optim="sgd",
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        eval_dataset=Documents(10, seed=5),
        callbacks=[EarlyStoppingCallback(3)],
    )
    trainer.train()
    assert trainer.state.global_step < 100
    evaluated = logged(trainer, "eval_loss")
    best = min(evaluated)
    assert evaluated[-1] > best
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-6)
    saved = load_file(Path(trainer.state.best_model_checkpoint) / "model.safetensors")
    assert all(torch.equal(saved[name], parameter) for name, parameter in model.composition_parameters())


class Kill(TrainerCallback):
    """Ends the run after a step, as a crash would: by an exception that nobody expects."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise ZeroDivisionError


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_repeats_the_uninterrupted_one(tmp_path: Path, accumulation: int) -> None:
    settings = {
        "count": 64,
        "max_steps": 12,
        "save_strategy": "steps",
        "save_steps": 5,
        "logging_steps": 3,
        "gradient_accumulation_steps": accumulation,
        "lr_scheduler_type": "cosine",
    }
    whole = trainer_of(random_composition(PAIRS["llama+gpt2"]), tmp_path / "whole", **settings)
    whole.train()
    broken = trainer_of(random_composition(PAIRS["llama+gpt2"]), tmp_path / "broken", callbacks=[Kill(7)], **settings)
    with pytest.raises(ZeroDivisionError):
        broken.train()
    resumed = trainer_of(random_composition(PAIRS["llama+gpt2"], seed=9), tmp_path / "broken", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert logged(resumed, "loss") == logged(whole, "loss")
    assert logged(resumed, "grad_norm") == logged(whole, "grad_norm")
    for (name, ours), (_, theirs) in zip(
        resumed.model.composition_parameters(), whole.model.composition_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_a_checkpoint_of_another_composition_is_refused(model: CalmForCausalLM, tmp_path: Path) -> None:
    trainer_of(model, tmp_path, save_strategy="steps", save_steps=3).train()
    other = lmcompose.compose(anchor=tiny_model("llama", 0), augmenting=tiny_model("gpt2", 1), connections=[(1, 2)])
    with pytest.raises(SavedFolderError, match="does not fit this composition"):
        trainer_of(other, tmp_path).train(resume_from_checkpoint=True)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_behind(model: CalmForCausalLM, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, max_steps=6, save_strategy="steps", save_steps=3)
    (tmp_path / "checkpoint-6").write_text("a file where the second checkpoint should be")
    with pytest.raises(SavedFolderError, match=r"checkpoint of step 6 could not be written.*Earlier checkpoints"):
        trainer.train()
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").is_file()


def test_old_checkpoints_that_cannot_be_removed_cost_neither_the_new_one_nor_the_run(
    model: CalmForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotate(*_: Any, **__: Any) -> None:
        raise OSError("Stale file handle")

    monkeypatch.setattr("transformers.trainer.rotate_checkpoints", rotate)
    trainer = trainer_of(model, tmp_path, max_steps=4, save_strategy="steps", save_steps=2, save_total_limit=1)
    with pytest.warns(UserWarning, match=r"checkpoint of step 2 is whole.*Stale file handle"):
        trainer.train()
    assert trainer.state.global_step == 4
    assert checkpoints(tmp_path) == [tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"]
    assert all(is_whole(checkpoint) for checkpoint in checkpoints(tmp_path))


def test_what_is_no_composition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not a LlamaForCausalLM.*lmcompose\.compose"):
        CalmTrainer(model=tiny_model("llama"), args=arguments(tmp_path))  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(model: CalmForCausalLM, tmp_path: Path) -> None:
    class Spoil(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                next(model.composition_parameters())[1].data.fill_(float("nan"))

    trainer = trainer_of(
        model,
        tmp_path,
        max_steps=6,
        save_strategy="steps",
        save_steps=2,
        callbacks=[Spoil()],
        logging_nan_inf_filter=False,
    )
    with pytest.raises(LmcomposeError, match="loss is nan at step 4"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_the_plain_trainer_trains_a_composition_too(tmp_path: Path) -> None:
    """With the loss of the whole batch however it is divided, and checkpoints of composition parameters only."""
    histories = []
    for accumulation in (1, 4):
        model = random_composition(PAIRS["llama+gpt2"])
        trainer = Trainer(
            model=model,
            args=arguments(
                tmp_path / str(accumulation),
                per_device_train_batch_size=8 // accumulation,
                gradient_accumulation_steps=accumulation,
                save_strategy="steps",
                save_steps=3,
                optim="sgd",
                max_grad_norm=0,
            ),
            train_dataset=Documents(24),
            data_collator=Collator(0),
        )
        trainer.train()
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        saved = load_file(tmp_path / str(accumulation) / "checkpoint-3" / "model.safetensors")
        assert set(saved) == {name for name, _ in model.composition_parameters()}
    assert histories[0] == pytest.approx(histories[1], rel=1e-5)
