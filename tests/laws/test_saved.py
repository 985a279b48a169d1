"""Law 6: only composition parameters are written; what is loaded is what was saved; a wrong base is refused by name."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lmcompose import CalmConfig, CalmForCausalLM, compose
from lmcompose.errors import SavedFolderError, WrongBaseError
from tests.compositions import anchor_of, augmenting_of, pair_params, plain_logits, random_composition, randomise
from tests.tiny import PAIRS, Pair, random_ids, save_tiny, tiny_model, tiny_tokenizer

IDS = random_ids(2, 10)
SHARDS = "model.safetensors"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An anchor and an augmenting model as a user has them: two folders."""
    return save_tiny(tmp_path / "base", "llama"), save_tiny(tmp_path / "helper", "gpt2", seed=1, hidden_size=24)


@pytest.fixture
def saved(folders: tuple[Path, Path], tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A saved random composition of the two folders, and its logits for IDS."""
    model = randomise(compose(anchor=str(folders[0]), augmenting=str(folders[1])))
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved", plain_logits(model, IDS)


def test_only_composition_parameters_are_written(saved: tuple[Path, torch.Tensor]) -> None:
    model = CalmForCausalLM.from_pretrained(saved[0])
    tensors = load_file(saved[0] / SHARDS)
    own = dict(model.composition_parameters())
    assert tensors.keys() == own.keys()
    assert all(torch.equal(tensors[name], own[name]) for name in own)
    with safe_open(saved[0] / SHARDS, "pt") as file:
        assert file.metadata()["format"] == "pt"
    assert not list(saved[0].glob("*.bin"))
    assert not (saved[0] / "adapter_config.json").exists(), "with peft installed AutoModel would load its base instead"


def test_no_old_tokenizer_stays_beside_a_composition_without_one(tmp_path: Path) -> None:
    anchor, augmenting = tiny_model("llama"), tiny_model("gpt2", seed=1)
    compose((anchor, tiny_tokenizer()), (augmenting, tiny_tokenizer())).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "optimizer.pt").write_text("a trainer's own")
    assert list((tmp_path / "saved").glob("tokenizer*"))
    compose(anchor, augmenting).save_pretrained(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {
        "README.md", "config.json", "generation_config.json", SHARDS, "optimizer.pt"
    }  # fmt: skip


def test_the_folder_says_what_it_needs(saved: tuple[Path, torch.Tensor], folders: tuple[Path, Path]) -> None:
    config = json.loads((saved[0] / "config.json").read_text())
    assert config["model_type"] == "calm"
    assert config["format_version"]
    assert list(config["members"]) == ["anchor", "augmenting"]
    assert config["members"]["anchor"]["name_or_path"] == str(folders[0])
    assert config["members"]["anchor"]["hidden_size"] == 32
    reference = config["members"]["augmenting"]
    assert (reference["name_or_path"], reference["model_type"]) == (str(folders[1]), "gpt2")
    assert (reference["hidden_size"], reference["vocab_size"]) == (24, 97)
    assert "README.md" in {path.name for path in saved[0].iterdir()}
    assert not [path.name for path in saved[0].parent.iterdir() if "tmp" in path.name], "a temporary folder was left"


def test_loaded_equals_saved_bit_for_bit(saved: tuple[Path, torch.Tensor]) -> None:
    folder, logits = saved
    for model in (AutoModelForCausalLM.from_pretrained(folder), CalmForCausalLM.from_pretrained(str(folder))):
        assert isinstance(model, CalmForCausalLM)
        assert not model.training
        assert torch.equal(plain_logits(model, IDS), logits)
        assert model.generation_config.eos_token_id == 2
    assert isinstance(AutoConfig.from_pretrained(folder), CalmConfig)


@pytest.mark.parametrize("pair", pair_params())
def test_live_members_can_be_given_at_load(pair: Pair, tmp_path: Path) -> None:
    model = random_composition(pair)
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=anchor_of(pair), augmenting=augmenting_of(pair))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert not any(parameter.requires_grad for member in loaded.members.values() for parameter in member.parameters())


def test_saving_what_was_loaded_writes_the_same_tensors(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    CalmForCausalLM.from_pretrained(saved[0]).save_pretrained(tmp_path / "again")
    first, second = load_file(saved[0] / SHARDS), load_file(tmp_path / "again" / SHARDS)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(tmp_path / "again"), IDS), saved[1])


def test_another_dtype_is_for_the_members(saved: tuple[Path, torch.Tensor]) -> None:
    model = CalmForCausalLM.from_pretrained(saved[0], dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.members.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for _, parameter in model.composition_parameters()} == {torch.float32}
    logits = plain_logits(model, IDS)
    assert logits.dtype == torch.bfloat16
    assert not torch.equal(logits.float(), saved[1])
    torch.testing.assert_close(logits.float(), saved[1], atol=0.15, rtol=0.1)  # the members' weights were rounded too
    whole = CalmForCausalLM.from_pretrained(saved[0], dtype="bfloat16", composition_dtype=torch.bfloat16)
    assert {parameter.dtype for _, parameter in whole.composition_parameters()} == {torch.bfloat16}


def test_a_folder_that_moved_with_its_members_given(
    saved: tuple[Path, torch.Tensor], folders: tuple[Path, Path]
) -> None:
    elsewhere = [folder.rename(folder.parent / f"{folder.name}-moved") for folder in folders]
    with pytest.raises((OSError, ValueError)) as refused:
        CalmForCausalLM.from_pretrained(saved[0])
    assert str(folders[0]) in str(refused.value)
    model = CalmForCausalLM.from_pretrained(saved[0], anchor=str(elsewhere[0]), augmenting=str(elsewhere[1]))
    assert torch.equal(plain_logits(model, IDS), saved[1])


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("what", "arch", "seed", "sizes"),
    [
        ("another architecture", "qwen3", 0, {}),
        ("another width", "llama", 0, {"hidden_size": 48}),
        ("another depth", "llama", 0, {"num_hidden_layers": 4}),
        ("the same shapes with other weights", "llama", 5, {}),
    ],
)
def test_a_wrong_anchor_is_refused_by_both_names(
    what: str,
    arch: str,
    seed: int,
    sizes: dict[str, int],
    saved: tuple[Path, torch.Tensor],
    folders: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    wrong = save_tiny(tmp_path / "wrong", arch, seed=seed, **sizes)
    with pytest.raises(WrongBaseError) as refused:
        CalmForCausalLM.from_pretrained(saved[0], anchor=str(wrong))
    assert f"was trained with '{folders[0]}' as anchor, but '{wrong}' is" in str(refused.value)
    assert ("other weights" if "other weights" in what else "another shape") in str(refused.value)


def test_swapped_members_are_refused(saved: tuple[Path, torch.Tensor], folders: tuple[Path, Path]) -> None:
    with pytest.raises(WrongBaseError) as refused:
        CalmForCausalLM.from_pretrained(saved[0], anchor=str(folders[1]), augmenting=str(folders[0]))
    assert str(folders[0]) in str(refused.value)
    assert str(folders[1]) in str(refused.value)


def test_a_member_folder_that_changed_in_place_is_refused(
    saved: tuple[Path, torch.Tensor], folders: tuple[Path, Path]
) -> None:
    shutil.rmtree(folders[1])
    save_tiny(folders[1], "gpt2", seed=6, hidden_size=24)
    with pytest.raises(WrongBaseError, match="helper"):
        CalmForCausalLM.from_pretrained(saved[0])


@pytest.mark.parametrize("kept", [0, 7, 200, 0.5, 0.999])
def test_a_truncated_file_is_refused(kept: float, saved: tuple[Path, torch.Tensor]) -> None:
    path = saved[0] / SHARDS
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(SavedFolderError) as refused:
        CalmForCausalLM.from_pretrained(saved[0])
    assert str(path) in str(refused.value)


def test_a_missing_file_is_refused(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    (saved[0] / SHARDS).unlink()
    with pytest.raises(SavedFolderError, match=SHARDS):
        CalmForCausalLM.from_pretrained(saved[0])
    with pytest.raises(SavedFolderError, match="nowhere"):
        CalmForCausalLM.from_pretrained(tmp_path / "nowhere")


def test_tensors_of_another_composition_are_refused(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    other = randomise(compose(anchor=tiny_model("llama"), augmenting=tiny_model("gpt2", seed=1), connections=[(0, 2)]))
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / SHARDS, saved[0] / SHARDS)
    with pytest.raises(SavedFolderError, match=SHARDS):
        CalmForCausalLM.from_pretrained(saved[0])


def test_a_format_of_the_future_is_refused(saved: tuple[Path, torch.Tensor]) -> None:
    path = saved[0] / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"format_version": 999}))
    with pytest.raises(SavedFolderError, match="999"):
        CalmForCausalLM.from_pretrained(saved[0])


@contextmanager
def _disk_for(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: the write fails as it does on a full disk, and for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_folder(saved: tuple[Path, torch.Tensor]) -> None:
    folder, logits = saved
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = randomise(CalmForCausalLM.from_pretrained(folder), seed=1)
    assert not torch.equal(plain_logits(model, IDS), logits)
    siblings = set(folder.parent.iterdir())
    for size in (100, 4_000):
        with pytest.raises(OSError) as failed, _disk_for(size):
            model.save_pretrained(folder)
        assert str(folder) in str(failed.value)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert set(folder.parent.iterdir()) == siblings, "the half-written folder was left behind"
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(folder), IDS), logits)
    model.save_pretrained(folder)
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(folder), IDS), plain_logits(model, IDS))


def test_a_write_that_fails_makes_no_folder(tmp_path: Path) -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    with pytest.raises(OSError), _disk_for(100):
        model.save_pretrained(tmp_path / "new")
    assert not list(tmp_path.iterdir())
