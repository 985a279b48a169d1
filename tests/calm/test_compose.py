"""The short way in: defaults, several augmenting models, and one clear error for each kind of bad input."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    FalconMambaConfig,
    JambaConfig,
    Mamba2Config,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedConfig,
    RwkvConfig,
    T5Config,
    T5ForConditionalGeneration,
)

import lmcompose
from lmcompose.architecture import check_causal_decoder
from lmcompose.errors import ConfigurationError, MemberError, TokenizerMismatchError
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def _no_weights_on_error(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests named *_before_weights fail when any weight is read."""
    if request.node.originalname.endswith("before_weights"):

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("weights were read")

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


def test_defaults_are_the_papers() -> None:
    anchor = tiny_model("llama", num_hidden_layers=4)
    model = lmcompose.compose(anchor, tiny_model("gpt2", num_hidden_layers=8))
    assert model.config.connections == {"augmenting": [[4, 2], [8, 4]]}
    assert model.config.num_heads == anchor.config.num_attention_heads
    assert model.config.projection == "linear"
    assert not any(parameter.requires_grad for parameter in model.members.parameters())
    assert all(parameter.requires_grad for _, parameter in model.composition_parameters())


def test_folders_bring_tokenizer_eos_and_chat_template(tmp_path: Path) -> None:
    save_tiny(tmp_path / "anchor", "llama")
    save_tiny(tmp_path / "augmenting", "gpt2", seed=1)
    model = lmcompose.compose(tmp_path / "anchor", tmp_path / "augmenting")
    assert model.tokenizer is not None
    assert model.tokenizer.chat_template == tiny_tokenizer().chat_template
    assert model.generation_config.eos_token_id == model.anchor.generation_config.eos_token_id is not None
    assert model.config.references()["anchor"].name_or_path == str(tmp_path / "anchor")


def test_generation_settings_are_a_copy() -> None:
    anchor = tiny_model("llama")
    model = lmcompose.compose(anchor, tiny_model("gpt2"))
    model.generation_config.max_new_tokens = 3
    assert anchor.generation_config.max_new_tokens != 3


def test_seed_decides_the_initial_parameters() -> None:
    anchor, augmenting = tiny_model("llama"), tiny_model("gpt2")
    drawn = [
        torch.cat([p.flatten() for _, p in lmcompose.compose(anchor, augmenting, seed=seed).composition_parameters()])
        for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_contributions_of_several_augmenting_models_add() -> None:
    anchor, ids = tiny_model("llama"), random_ids(2, 6)
    one, two = tiny_model("gpt2", seed=1), tiny_model("opt", seed=2)
    both = lmcompose.compose(anchor, {"one": one, "two": two}, connections={"one": [(3, 3)], "two": [(2, 3)]})
    generator = torch.Generator().manual_seed(0)
    for _, parameter in both.composition_parameters():
        parameter.data.normal_(0, 0.2, generator=generator)
    seen: list[torch.Tensor] = []
    head = anchor.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        anchor(ids), both(ids)
        for name, layer in (("one", 3), ("two", 2)):
            alone = lmcompose.compose(anchor, both.members[name], connections=[(layer, 3)])
            alone.bridge("augmenting", layer, 3).load_state_dict(both.bridge(name, layer, 3).state_dict())
            alone(ids)
    head.remove()
    bare, together, *separate = seen
    torch.testing.assert_close(together - bare, sum(part - bare for part in separate), atol=1e-5, rtol=1e-4)
    assert all((part - bare).abs().max() > 1e-3 for part in separate)


def test_heads_and_names_that_cannot_be() -> None:
    anchor, augmenting = tiny_model("llama"), tiny_model("gpt2")
    with pytest.raises(ConfigurationError, match="does not divide"):
        lmcompose.compose(anchor, augmenting, num_heads=5)
    with pytest.raises(ConfigurationError, match="Did you mean 'linear'"):
        lmcompose.compose(anchor, augmenting, projection="linar")
    for rank in (0, 33):
        with pytest.raises(ConfigurationError, match=r"rank = .* a width of 32\. Choose a rank from 1 to 32"):
            lmcompose.compose(anchor, augmenting, rank=rank)
    with pytest.raises(ConfigurationError, match="cannot name"):
        lmcompose.compose(anchor, {"a.b": augmenting})
    with pytest.raises(ConfigurationError, match="at least one"):
        lmcompose.compose(anchor, {})
    with pytest.raises(ConfigurationError, match="as a dict"):
        lmcompose.compose(anchor, {"a": augmenting, "b": augmenting}, connections=[(1, 1)])
    with pytest.raises(ConfigurationError, match="for each of them"):
        lmcompose.compose(anchor, {"a": augmenting}, connections={"b": [(1, 1)]})


def test_impossible_connections_before_weights(tmp_path: Path) -> None:
    for name in ("anchor", "augmenting"):
        tiny = tiny_model("llama")
        tiny.config.save_pretrained(tmp_path / name)
    folders = (tmp_path / "anchor", tmp_path / "augmenting")
    with pytest.raises(ConfigurationError, match="no layer 9"):
        lmcompose.compose(*folders, connections=[(9, 1)])
    with pytest.raises(ConfigurationError, match="given twice"):
        lmcompose.compose(*folders, connections=[(1, 1), (1, 1)])


def test_a_missing_model_before_weights(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match=r"nowhere.*for the anchor.*config\.json"):
        lmcompose.compose(tmp_path / "nowhere", tmp_path / "nowhere")


def test_an_encoder_or_encoder_decoder_before_weights(tmp_path: Path) -> None:
    tiny_model("llama").config.save_pretrained(tmp_path / "decoder")
    BertConfig().save_pretrained(tmp_path / "encoder")
    T5Config().save_pretrained(tmp_path / "encoder-decoder")
    with pytest.raises(MemberError, match=r"cannot be the anchor: it is an encoder,"):
        lmcompose.compose(tmp_path / "encoder", tmp_path / "decoder")
    with pytest.raises(MemberError, match=r"cannot be the augmenting: it is an encoder-decoder"):
        lmcompose.compose(tmp_path / "decoder", tmp_path / "encoder-decoder")


@pytest.mark.parametrize("config", [MambaConfig, Mamba2Config, FalconMambaConfig, RwkvConfig])
def test_a_model_without_attention_before_weights(config: type[PreTrainedConfig], tmp_path: Path) -> None:
    config().save_pretrained(tmp_path / "states")
    tiny_model("llama").config.save_pretrained(tmp_path / "decoder")
    message = r"'.*states' \(.*\) cannot be the {}: it is a model without attention heads.*Choose a model with attent"
    with pytest.raises(MemberError, match=message.format("anchor")):
        lmcompose.compose(tmp_path / "states", tmp_path / "decoder")
    with pytest.raises(MemberError, match=message.format("expert")):
        lmcompose.proxy_tune(tmp_path / "decoder", tmp_path / "states", tmp_path / "decoder")


def test_live_models_without_attention_are_refused_and_live_hybrids_are_not() -> None:
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    with pytest.raises(MemberError, match="without attention heads"):
        lmcompose.compose(MambaForCausalLM(MambaConfig(**sizes)), tiny_model("llama"))
    check_causal_decoder(JambaConfig(), "a hybrid", "anchor")


def test_live_encoders_are_refused_too() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with pytest.raises(MemberError, match="encoder"):
        lmcompose.compose(BertLMHeadModel(BertConfig(vocab_size=97, **sizes)), tiny_model("llama"))
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=97, d_model=16, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(MemberError, match="encoder-decoder"):
        lmcompose.compose(tiny_model("llama"), t5)


def test_different_tokenizers_before_weights(tmp_path: Path) -> None:
    for name in ("anchor", "augmenting"):
        tiny_model("llama").config.save_pretrained(tmp_path / name)
        tokenizer = tiny_tokenizer()
        if name == "augmenting":
            tokenizer.add_tokens(["extra"])
        tokenizer.save_pretrained(tmp_path / name)
    with pytest.raises(TokenizerMismatchError, match="'extra' is missing and id 97"):
        lmcompose.compose(tmp_path / "anchor", tmp_path / "augmenting", alignment="ids")


def test_live_models_without_tokenizers_must_match_in_size() -> None:
    with pytest.raises(TokenizerMismatchError, match="Pass each live model with its tokenizer"):
        lmcompose.compose(tiny_model("llama"), tiny_model("gpt2", vocab_size=98))


def test_padded_embedding_rows_do_not_matter_when_the_tokenizers_agree() -> None:
    tokenizer, ids = tiny_tokenizer(), random_ids(1, 5)
    wide = tiny_model("gpt2", vocab_size=128)
    model = lmcompose.compose((tiny_model("llama"), tokenizer), (wide, tiny_tokenizer()))
    assert model(ids).logits.shape == (1, 5, 97)
