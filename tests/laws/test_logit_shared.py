"""Members that share one model's weights: an expert that is a LoRA on the antiexpert runs with it as one batch.

The batched pass must equal two separate models, in logits and in every way to decode, with the weights in memory once.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose import LogitForCausalLM, combine, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import MemberError
from lmcompose.reference import BARE
from tests.compositions import DIFFERENT, assert_same_logits, plain_logits
from tests.logit_compositions import (
    IDS,
    MASK,
    NEW,
    PROXY,
    assert_same_decoding,
    decode,
    lora_of,
    randomise_adapters,
)
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

peft = pytest.importorskip("peft")

TARGETS = {
    "llama": ("q_proj", "v_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj"),
    "qwen2": ("q_proj", "up_proj"),
    "gemma3": ("k_proj", "o_proj"),
    "bloom": ("query_key_value",),
    "opt": ("q_proj", "v_proj"),
}
WAYS: tuple[dict[str, Any], ...] = (
    {}, {"use_cache": False}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"},
    {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2},
)  # fmt: skip


def _tuned(arch: str, seed: int = 0, **settings: Any) -> Any:
    return lora_of(tiny_model(arch, seed=1), seed, TARGETS[arch], **settings)


def _base() -> PreTrainedModel:
    return tiny_model("llama", num_hidden_layers=4).requires_grad_(False)  # see `compositions.anchor_of`


def _pair(arch: str = "llama", **options: Any) -> LogitForCausalLM:
    """Expert and antiexpert are one live model with and without its adapter."""
    tuned = _tuned(arch)
    return proxy_tune(_base(), tuned, tuned.get_base_model(), **options)


def _apart(arch: str = "llama", **options: Any) -> LogitForCausalLM:
    """The same with two models."""
    return proxy_tune(_base(), _tuned(arch), tiny_model(arch, seed=1), **options)


def _passes(model: PreTrainedModel) -> list[int]:
    """Rows of every pass through `model` from now on."""
    rows: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: rows.append(output.shape[0]))
    return rows


@pytest.mark.parametrize("arch", ["llama", *(pytest.param(arch, marks=pytest.mark.slow) for arch in list(TARGETS)[1:])])
def test_one_pass_of_both_equals_two_models(arch: str) -> None:
    model, apart = _pair(arch), _apart(arch)
    assert model.passes == [("base",), ("expert", "antiexpert")]
    assert model.adapters == {"expert": "default", "antiexpert": BARE}
    expected = plain_logits(apart, IDS, attention_mask=MASK)
    assert_same_logits(plain_logits(model, IDS, attention_mask=MASK)[MASK.bool()], expected[MASK.bool()])
    assert (plain_logits(_tuned(arch), IDS) - plain_logits(tiny_model(arch, seed=1), IDS)).abs().max() > DIFFERENT
    for settings in WAYS:
        assert torch.equal(decode(model, **settings).sequences, decode(apart, **settings).sequences), settings
    for settings in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": tiny_model("llama", seed=9)}):
        row = slice(1, 2)
        assert torch.equal(decode(model, row, **settings).sequences, decode(apart, row).sequences), settings


def test_the_weights_are_there_once_and_the_passes_are_one() -> None:
    model, apart = _pair(), _apart()
    small = sum(p.numel() for p in tiny_model("llama", seed=1).parameters())
    assert sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in model.parameters()) == small
    rows, base_rows = _passes(model.member("expert")), _passes(model.member("base"))
    decode(model)
    assert rows == [2 * len(IDS)] * NEW
    assert base_rows == [len(IDS)] * NEW
    two = _pair(share_passes=False)
    assert two.passes == [("base",), ("expert",), ("antiexpert",)]
    assert sum(p.numel() for p in two.parameters()) == sum(p.numel() for p in model.parameters())
    rows = _passes(two.member("expert"))
    got = decode(two)
    assert rows == [len(IDS)] * (2 * NEW)
    assert torch.equal(got.sequences, decode(apart).sequences)


def test_two_passes_over_one_model_are_two_models_bit_for_bit() -> None:
    two, apart = _pair(share_passes=False), _apart()
    assert torch.equal(plain_logits(two, IDS), plain_logits(apart, IDS))
    for settings in ({}, {"num_beams": 3}):
        assert torch.equal(decode(two, **settings).sequences, decode(apart, **settings).sequences)


def test_the_law_of_arithmetic_holds_for_a_shared_pair() -> None:
    """Bit for bit in passes of their own; two halves of one batch can differ in how their last bits are rounded."""
    assert_same_decoding(decode(_pair(), alpha=0.0), decode(_base()))
    idle = _tuned("llama")
    for name, parameter in idle.named_parameters():
        if "lora_B" in name:
            nn.init.zeros_(parameter)  # the expert is the antiexpert
    tuned = _tuned("llama")  # and here the antiexpert is the base
    for share in (True, False):
        same = proxy_tune(_base(), idle, idle.get_base_model(), share_passes=share)
        expert = proxy_tune(tuned.get_base_model(), tuned, tuned.get_base_model(), share_passes=share)
        assert len(same.passes) == (2 if share else 3)
        for model, plain in ((same, _base()), (expert, _tuned("llama").requires_grad_(False))):
            if share:
                assert_same_logits(plain_logits(model, IDS), plain_logits(plain, IDS))
                assert torch.equal(decode(model).sequences, decode(plain).sequences)
            else:
                assert torch.equal(plain_logits(model, IDS), plain_logits(plain, IDS))
                assert_same_decoding(decode(model), decode(plain))


def test_beams_and_chosen_rows_take_both_halves_with_them() -> None:
    """What `generate` does to a cache: repeat, reorder and select texts of a batch of 2B rows."""
    model, apart = _pair(), _apart()
    caches = []
    for each in (model, apart):
        cache = each.new_cache()
        with torch.no_grad():
            each(IDS, **{CACHE_ARGUMENT: cache})
        cache.batch_repeat_interleave(2)
        cache.reorder_cache(torch.tensor([1, 0, 3, 3, 5, 2]))
        cache.batch_select_indices(torch.tensor([0, 2, 4, 5]))
        caches.append(cache)
    ids = random_ids(4, 1, seed=8)
    with torch.no_grad():
        got, expected = (
            each(ids, **{CACHE_ARGUMENT: cache}).logits for each, cache in zip((model, apart), caches, strict=True)
        )
    assert_same_logits(got, expected)
    with torch.no_grad():
        rows = [IDS[i] for i in (0, 1, 2, 1)]  # repeated, reordered, selected
        by_hand = plain_logits(apart, torch.cat([torch.stack(rows), ids], dim=1))[:, -1]
    assert_same_logits(got[:, -1], by_hand)


def test_alpha_per_request_on_a_shared_pair() -> None:
    values = torch.tensor([0.0, 1.0, 2.0])
    for settings in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        got = decode(_pair(), alpha=values, **settings).sequences
        assert torch.equal(got, decode(_apart(), alpha=values, **settings).sequences)


# ------------------------------------------------------------------------------- what cannot be mixed in a batch


def _falls_back(tuned: Any, plain: PreTrainedModel, expert: PreTrainedModel) -> LogitForCausalLM:
    """Two passes, equal to two models."""
    model = proxy_tune(_base(), tuned, tuned.get_base_model())
    assert model.passes == [("base",), ("expert",), ("antiexpert",)]
    by_hand = plain_logits(_base(), IDS) + plain_logits(expert, IDS) - plain_logits(plain, IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand)
    apart = proxy_tune(_base(), expert, plain)
    for settings in ({}, {"num_beams": 3}):
        assert torch.equal(decode(model, **settings).sequences, decode(apart, **settings).sequences)
    return model


def test_dora_falls_back_to_two_passes() -> None:
    _falls_back(_tuned("llama", use_dora=True), tiny_model("llama", seed=1), _tuned("llama", use_dora=True))


def test_layers_that_lose_sight_of_the_rows_fall_back() -> None:
    """OPT hands its feed-forward layers all tokens of a batch in one row."""

    def tuned() -> Any:
        return lora_of(tiny_model("opt", seed=1), 0, ("fc1", "q_proj"))

    _falls_back(tuned(), tiny_model("opt", seed=1), tuned())


def test_another_kind_of_adapter_falls_back() -> None:
    def tuned() -> Any:
        config = peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(tiny_model("llama", seed=1), config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "ia3_" in name:
                    parameter.copy_(torch.linspace(0.2, 2.0, parameter.numel()).reshape(parameter.shape))
        return model.eval()

    _falls_back(tuned(), tiny_model("llama", seed=1), tuned())


def test_a_whole_module_that_an_adapter_replaces_is_switched_too() -> None:
    """`modules_to_save`: the head was left in the bare model's role, where LoRA alone was taken out."""

    def tuned() -> Any:
        return _tuned("llama", modules_to_save=["lm_head"])

    model = proxy_tune(_base(), tuned_model := tuned(), tuned_model.get_base_model())
    by_hand = plain_logits(_base(), IDS) + plain_logits(tuned(), IDS) - plain_logits(tiny_model("llama", seed=1), IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand)
    two = proxy_tune(_base(), tuned_model, tuned_model.get_base_model(), share_passes=False)
    assert_same_logits(plain_logits(two, IDS), by_hand)


def test_lora_on_embeddings_and_head() -> None:
    def tuned() -> Any:
        return lora_of(tiny_model("llama", seed=1), 0, ("embed_tokens", "lm_head", "q_proj"))

    model = proxy_tune(_base(), tuned_model := tuned(), tuned_model.get_base_model())
    assert len(model.passes) == 2
    by_hand = plain_logits(_base(), IDS) + plain_logits(tuned(), IDS) - plain_logits(tiny_model("llama", seed=1), IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand)


def test_a_mixture_of_experts_with_lora_on_its_attention_is_mixed() -> None:
    def tuned() -> Any:
        return lora_of(tiny_model("mixtral", seed=1), 0, ("q_proj", "v_proj"))

    model = proxy_tune(_base(), tuned_model := tuned(), tuned_model.get_base_model())
    assert len(model.passes) == 2
    by_hand = plain_logits(_base(), IDS) + plain_logits(tuned(), IDS) - plain_logits(tiny_model("mixtral", seed=1), IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand)


def test_a_merged_adapter_is_refused_and_left_as_it_is() -> None:
    """Taking it out of the weights again would leave them different in the last bits."""
    tuned = _tuned("llama")
    tuned.merge_adapter()
    before = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    with pytest.raises(MemberError, match="unmerge_adapter"):
        proxy_tune(_base(), tuned, tuned.get_base_model())
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items())
    # alone, or in two contexts, it need not be taken out
    model = proxy_tune(_base(), tuned, tiny_model("llama", seed=1))
    assert_same_logits(plain_logits(model, IDS), plain_logits(_apart(), IDS))
    rows = _passes(tuned.get_base_model())
    same = proxy_tune(_base(), tuned, tuned)
    assert_same_decoding(decode(same), decode(_base()))
    assert rows == [len(IDS)] * NEW, "members that read the very same text are run once"
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items())


def test_trained_biases_are_refused() -> None:
    """They are in the bare model as well."""
    tuned = lora_of(tiny_model("qwen2", seed=1), 0, ("q_proj",), bias="lora_only")
    with pytest.raises(MemberError, match="bias='lora_only'"):
        proxy_tune(_base(), tuned, tuned.get_base_model())
    proxy_tune(_base(), tuned, tiny_model("qwen2", seed=1))


def test_several_adapters_at_once_are_refused() -> None:
    tuned = _tuned("llama")
    tuned.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    tuned.base_model.set_adapter(["default", "second"])
    with pytest.raises(MemberError, match=r"\['default', 'second'\].*add_weighted_adapter"):
        proxy_tune(_base(), tuned, tuned.get_base_model())


def test_the_adapter_in_use_is_the_one_that_counts() -> None:
    tuned = _tuned("llama")
    tuned.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    randomise_adapters(tuned, seed=3)
    tuned.set_adapter("second")
    expert = plain_logits(tuned, IDS)
    model = proxy_tune(_base(), tuned, tuned.get_base_model())
    by_hand = plain_logits(_base(), IDS) + expert - plain_logits(tiny_model("llama", seed=1), IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand)
    tuned.set_adapter("default")  # later changes of the live model are not followed
    assert_same_logits(plain_logits(model, IDS), by_hand)


# ------------------------------------------------------------------------------- live models go unharmed


@pytest.mark.parametrize(
    ("settings", "share"),
    [({}, True), ({}, False), ({"use_dora": True}, False), ({"modules_to_save": ["lm_head"]}, True)],
    ids=str,
)
def test_detaching_leaves_the_peft_model_as_it_was(settings: dict[str, Any], share: bool) -> None:
    tuned = _tuned("llama", **settings)
    before = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    trainable = {name for name, parameter in tuned.named_parameters() if parameter.requires_grad}
    hooks = [len(m._forward_pre_hooks) for m in tuned.modules()]
    logits = plain_logits(tuned, IDS)
    model = proxy_tune(_base(), tuned, tuned.get_base_model(), share_passes=share)
    decode(model)
    assert torch.equal(plain_logits(tuned, IDS), logits), "the live model is no longer the tuned one"
    assert not any(parameter.requires_grad for parameter in tuned.parameters())
    model.detach()
    assert [len(m._forward_pre_hooks) for m in tuned.modules()] == hooks
    assert {name for name, parameter in tuned.named_parameters() if parameter.requires_grad} == trainable
    assert torch.equal(plain_logits(tuned, IDS), logits)
    with tuned.disable_adapter():
        assert torch.equal(plain_logits(tuned, IDS), plain_logits(tiny_model("llama", seed=1), IDS))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items())
    model.attach()
    assert_same_logits(
        plain_logits(model, IDS),
        plain_logits(proxy_tune(_base(), _tuned("llama", **settings), tiny_model("llama", seed=1)), IDS),
    )


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("leader", ["small", "tuned"])
def test_a_leader_that_was_loaded_by_name_is_as_it_was_named(leader: str, share: bool, tmp_path: Path) -> None:
    small = save_tiny(tmp_path / "small", "llama", seed=1)
    tuned = _tuned("llama")
    tuned.peft_config["default"].base_model_name_or_path = str(small)
    tuned.save_pretrained(tmp_path / "tuned")
    alone = {"small": plain_logits(tiny_model("llama", seed=1), IDS), "tuned": plain_logits(tuned, IDS)}
    other = "tuned" if leader == "small" else "small"
    model = combine("a + b", {"a": str(tmp_path / leader), "b": str(tmp_path / other)}, share_passes=share)
    logits = plain_logits(model, IDS)
    assert_same_logits(logits, alone["small"] + alone["tuned"])
    for _ in range(2):
        assert torch.equal(plain_logits(model.detach(), IDS), alone[leader])
        assert torch.equal(plain_logits(model.detach(), IDS), alone[leader])
        assert torch.equal(plain_logits(model.attach(), IDS), logits)
    proxied = proxy_tune(str(tmp_path / "small"), str(tmp_path / "tuned"), str(tmp_path / "small"))
    assert torch.equal(plain_logits(proxied.detach(), IDS), alone["small"])
    assert_same_logits(plain_logits(proxied.attach(), IDS), alone["tuned"])


def test_an_error_inside_a_pass_switches_back() -> None:
    for share in (True, False):
        tuned = _tuned("llama", use_dora=not share)
        logits = plain_logits(tuned, IDS)
        model = proxy_tune(_base(), tuned, tuned.get_base_model(), share_passes=share)
        expected = plain_logits(model, IDS)

        def fail(module: nn.Module, args: Any, output: Any) -> None:
            raise RuntimeError("in the middle")

        handle = tuned.get_base_model().model.layers[1].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            model(IDS)
        handle.remove()
        assert torch.equal(plain_logits(tuned, IDS), logits)
        assert torch.equal(plain_logits(model, IDS), expected)


@pytest.mark.parametrize(("dora", "share"), [(False, True), (True, False)], ids=["mixed", "switched"])
def test_threads_do_not_meet_on_a_shared_model(dora: bool, share: bool) -> None:
    """Two compositions over one PEFT model: switching its adapters is the business of one thread at a time."""
    tuned = _tuned("llama", use_dora=dora)
    first = proxy_tune(_base(), tuned, tuned.get_base_model(), share_passes=share)
    second = proxy_tune(tiny_model("gpt2", seed=5), tuned, tuned.get_base_model(), share_passes=share)
    texts = [random_ids(1, 5 + k, seed=30 + k) for k in range(3)]
    expected = [[plain_logits(model, ids) for ids in texts] for model in (first, second)]
    wrong: list[int] = []
    barrier = threading.Barrier(4)

    def call(index: int) -> None:
        barrier.wait()
        for _ in range(3):
            for ids, logits in zip(texts, expected[index % 2], strict=True):
                if not torch.equal(plain_logits((first, second)[index % 2], ids), logits):
                    wrong.append(index)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------------------- adapters by name


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """A base, a small model, and two adapters on it, as a user has them."""
    made = {"base": str(save_tiny(tmp_path / "base", "llama", num_hidden_layers=4))}
    made["small"] = str(save_tiny(tmp_path / "small", "llama", seed=1))
    for seed, name in enumerate(("tuned", "other")):
        adapter = _tuned("llama", seed)
        adapter.peft_config["default"].base_model_name_or_path = made["small"]
        adapter.save_pretrained(tmp_path / name)
        made[name] = str(tmp_path / name)
    return made


def test_an_adapter_folder_and_its_base_are_loaded_once(folders: dict[str, str]) -> None:
    model = proxy_tune(folders["base"], folders["tuned"], folders["small"])
    assert model.member("expert") is model.member("antiexpert")
    assert model.passes == [("base",), ("expert", "antiexpert")]
    live = _pair()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in live.parameters())
    assert_same_logits(plain_logits(model, IDS), plain_logits(_apart(), IDS))
    assert torch.equal(decode(model).sequences, decode(_apart()).sequences)
    references = model.config.references()
    assert references["expert"].places == [folders["small"], folders["tuned"]]
    assert references["antiexpert"].places == [folders["small"]]
    assert references["expert"].fingerprint["adapters"] != references["antiexpert"].fingerprint["adapters"]


def test_one_model_under_two_spellings_is_loaded_once(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folders["base"]).parent)
    model = proxy_tune("base", Path(folders["tuned"]), "./small")
    assert model.member("expert") is model.member("antiexpert")
    assert_same_logits(plain_logits(model, IDS), plain_logits(_apart(), IDS))


def test_two_adapters_on_one_base_are_one_pass(folders: dict[str, str]) -> None:
    members = {"base": folders["base"], "expert": folders["tuned"], "antiexpert": folders["other"]}
    model = combine(PROXY, members, alpha=1.0)
    assert model.passes == [("base",), ("expert", "antiexpert")]
    apart = combine(PROXY, {"base": _base(), "expert": _tuned("llama", 0), "antiexpert": _tuned("llama", 1)}, alpha=1.0)
    assert_same_logits(plain_logits(model, IDS), plain_logits(apart, IDS))
    for settings in WAYS[-2:]:
        assert torch.equal(decode(model, **settings).sequences, decode(apart, **settings).sequences), settings


def test_the_leader_with_its_own_adapters(folders: dict[str, str]) -> None:
    """Four roles on one model: bare as the leader, two adapters, and one of these again."""
    members = {"leader": folders["small"], "a": folders["tuned"], "keys": folders["other"], "again": folders["tuned"]}
    with pytest.raises(ValueError, match="cannot be called 'keys'"):
        combine("leader + a - keys + again", members)
    members["lora"] = members.pop("keys")
    model = combine("leader + a - lora + again", members)
    assert model.passes == [("leader",), ("a", "again", "lora")]
    bare, first, second = (
        plain_logits(m, IDS) for m in (tiny_model("llama", seed=1), _tuned("llama", 0), _tuned("llama", 1))
    )
    assert_same_logits(plain_logits(model, IDS), bare + 2 * first - second)
    with model.disable():
        assert torch.equal(plain_logits(model, IDS), bare)
    assert torch.equal(decode(model, num_beams=2).sequences, decode(model, num_beams=2, use_cache=False).sequences)


def test_an_adapter_that_does_not_fit_is_named(folders: dict[str, str], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = Path(folders["tuned"]) / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, file)
    for antiexpert in (folders["small"], folders["other"]):
        with pytest.raises(MemberError, match="could not be put on") as refused:
            proxy_tune(folders["base"], folders["tuned"], antiexpert)
        assert folders["tuned"] in str(refused.value)
        assert folders["small"] in str(refused.value)


def test_a_live_model_brings_its_tokenizer_to_every_role_it_plays() -> None:
    """Rows that differ need a tokenizer to be told apart; it is given with one of the two roles."""
    tokenizer = tiny_tokenizer()
    wide = tiny_model("llama", vocab_size=104)
    tuned = _tuned("llama")
    model = proxy_tune((wide, tokenizer), (tuned, tokenizer), tuned.get_base_model())
    by_hand = plain_logits(wide, IDS)[..., :97] + (
        plain_logits(_tuned("llama"), IDS) - plain_logits(tiny_model("llama", seed=1), IDS)
    )
    got = plain_logits(model, IDS)
    assert_same_logits(got[..., :97], by_hand)
    assert torch.equal(got[..., 97:], plain_logits(wide, IDS)[..., 97:])
