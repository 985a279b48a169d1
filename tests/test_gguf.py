"""A GGUF file is a member like the model that it was made from: the same logits, saved, loaded, refused in words.

The files are written here with the `gguf` package, as llama.cpp's converter lays a llama out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, modeling_gguf_pytorch_utils

from lmcompose import CalmForCausalLM, compose
from lmcompose.card import is_hub_id
from lmcompose.errors import MemberError
from lmcompose.gguf import hub_gguf, is_gguf
from lmcompose.loading import load_member, plan_member
from lmcompose.places import is_missing_folder, is_written_as_path
from tests.compositions import plain_logits, randomise
from tests.test_adapters import COMMIT, put_on_hub
from tests.tiny import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE, random_ids, save_tiny, tiny_model

gguf = pytest.importorskip("gguf")

IDS = random_ids(2, 9)
SPACE = "\u2581"
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", SPACE, *"abcdefghijklmnopqrstuvwxyz", f"{SPACE}a", f"{SPACE}b", "ab"]
TOKENS += [f"w{i}" for i in range(VOCAB_SIZE - len(TOKENS))]

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""Parts of parameter names: transformers' and GGUF's."""


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in GGUF's order: rotary pairs lie side by side, where transformers has them half a head apart."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(model: PreTrainedModel, path: Path, quantised: bool = False, tokenizer: bool = True) -> Path:
    """Write a tiny llama as a GGUF file: float32, or with 8-bit matrices where the rows are long enough for blocks."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if tokenizer:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(TOKENS)
        writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
        writer.add_token_types([3, 3, 3, 2] + [1] * (len(TOKENS) - 4))  # control, unknown, normal
        writer.add_add_bos_token(True)
        writer.add_bos_token_id(BOS_ID)
        writer.add_eos_token_id(EOS_ID)
        writer.add_pad_token_id(PAD_ID)
        writer.add_unk_token_id(3)
    for name, parameter in model.state_dict().items():
        values = parameter.numpy()
        if "q_proj" in name:
            values = interleaved(values, config.num_attention_heads)
        if "k_proj" in name:
            values = interleaved(values, config.num_key_value_heads)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        if quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")


def test_a_gguf_file_gives_the_logits_of_its_model(file: Path, tmp_path: Path) -> None:
    member, twin = load_member(str(file)), load_member(save_tiny(tmp_path / "twin", "llama"))
    assert torch.equal(member.model(IDS).logits, twin.model(IDS).logits)
    assert member.reference.places == [str(file)]
    assert member.reference.shape == twin.reference.shape
    assert member.reference.fingerprint == twin.reference.fingerprint
    assert member.model.name_or_path == str(file)
    assert not any(parameter.requires_grad for parameter in member.model.parameters())
    assert load_member(file, dtype="bfloat16").model.dtype == torch.bfloat16


def test_the_tokenizer_is_in_the_file(file: Path) -> None:
    tokenizer = load_member(file).tokenizer
    assert tokenizer is not None
    # without a BOS: transformers 5.19 does not read that the file wants one
    ids = tokenizer("ab a b", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [f"{SPACE}a", "b", f"{SPACE}a", f"{SPACE}b"]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, EOS_ID)


def test_a_file_without_a_tokenizer_is_a_member_without_one(tmp_path: Path) -> None:
    assert load_member(write_gguf(tiny_model("llama"), tmp_path / "a.gguf", tokenizer=False)).tokenizer is None


def test_packed_weights_are_unpacked(tmp_path: Path) -> None:
    member = load_member(write_gguf(tiny_model("llama"), tmp_path / "small.gguf", quantised=True))
    assert {parameter.dtype for parameter in member.model.parameters()} == {torch.float32}
    difference = (member.model(IDS).logits - tiny_model("llama")(IDS).logits).abs().max()
    assert 1e-4 < difference < 0.5, "eight bits are near the model that was packed, and not equal to it"
    assert len(member.reference.fingerprint) > 4


def test_the_file_that_is_named_is_read_and_not_one_of_that_name_here(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    write_gguf(tiny_model("llama", seed=5), tmp_path / "here" / "tiny.gguf")
    monkeypatch.chdir(tmp_path / "here")
    assert torch.equal(load_member("../tiny.gguf").model(IDS).logits, tiny_model("llama")(IDS).logits)
    assert torch.equal(load_member("tiny.gguf").model(IDS).logits, tiny_model("llama", seed=5)(IDS).logits)


def test_a_saved_composition_loads_its_file_again(file: Path, tmp_path: Path) -> None:
    model = randomise(compose(anchor=str(file), augmenting=tiny_model("gpt2", seed=1)))
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", augmenting=tiny_model("gpt2", seed=1))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert str(file) in (tmp_path / "saved" / "README.md").read_text()


def test_a_file_on_the_hub(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "repository").mkdir()
    file.rename(tmp_path / "repository" / "tiny.gguf")
    (tmp_path / "repository" / "README.md").write_text("---\nlicense: mit\n---\n")
    put_on_hub(tmp_path / "hub", "some/one", COMMIT, tmp_path / "repository")
    member = load_member("some/one/tiny.gguf")
    assert torch.equal(member.model(IDS).logits, tiny_model("llama")(IDS).logits)
    assert (member.reference.revision, member.reference.license) == (COMMIT, "mit")
    model = randomise(compose(anchor="some/one/tiny.gguf", augmenting=tiny_model("gpt2", seed=1)))
    model.save_pretrained(tmp_path / "saved")
    assert "base_model:\n- some/one\n---" in (tmp_path / "saved" / "README.md").read_text()
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", augmenting=tiny_model("gpt2", seed=1))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))


def test_which_names_are_files_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("owner/repo/file.gguf", "Owner/Repo-1.5B/file-Q4_K_M.GGUF"):
        assert is_gguf(name)
        assert hub_gguf(name) == tuple(name.rsplit("/", 1))
        assert is_hub_id(name)
        assert not is_written_as_path(name)
        assert not is_missing_folder(name)
    for name in ("./repo/file.gguf", "/owner/repo/file.gguf", "a/b/c/file.gguf", "repo/file.gguf", "../b/file.gguf"):
        assert is_gguf(name)
        assert hub_gguf(name) is None
        assert is_missing_folder(name)
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    (tmp_path / "owner" / "repo" / "file.gguf").touch()
    assert hub_gguf("owner/repo/file.gguf") is None, "what is here goes first"
    assert not is_gguf("owner/repo")


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", ["./nothing.gguf", "/models/deep/down/nothing.gguf", "nothing.gguf"])
def test_a_file_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(MemberError, match=r"for the expert.*no such file"):
        plan_member(name, "expert")


def test_a_file_that_is_no_gguf_or_cut_short_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MemberError, match=f"{file}.*for the expert"):
        load_member(file, role="expert")
    file.write_text("not a model at all, whatever its name says")
    with pytest.raises(MemberError, match=f"No model could be read at '{file}' .for the expert.: .*GGUF"):
        plan_member(file, "expert")


def test_the_package_that_is_missing_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_gguf_pytorch_utils, "is_gguf_available", lambda: False)
    with pytest.raises(MemberError, match=r"takes the gguf package\. pip install 'lmcompose\[gguf\]'"):
        plan_member(file)


def test_the_hub_is_not_asked_for_the_licence_of_a_file_here(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`models/tiny.gguf` looks like the id of somebody's repository."""

    def ask(*names: str, **_: object) -> None:
        raise AssertionError(f"the hub was asked for {names}")

    monkeypatch.chdir(file.parent.parent)
    monkeypatch.setattr("lmcompose.places.cached_file", ask)
    assert plan_member(f"{file.parent.name}/{file.name}").license is None


def test_a_folder_whose_name_ends_like_a_files_is_a_folder(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny.gguf", "llama")
    assert torch.equal(load_member(folder).model(IDS).logits, tiny_model("llama")(IDS).logits)
