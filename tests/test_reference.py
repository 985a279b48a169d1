"""Which model a member is: a reference survives being saved, and tells one training run's weights from another's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose.errors import WrongBaseError
from lmcompose.reference import BARE, MemberReference, check_same_base, commit_of, fingerprint, same_weights
from tests.tiny import tiny_config, tiny_model

REFERENCE = MemberReference.from_config(tiny_config("llama"), "some/llama", revision="abc", license="mit")


def test_a_reference_is_read_back_from_json() -> None:
    reference = dataclasses.replace(REFERENCE, fingerprint=fingerprint(tiny_model("llama")), adapter="some/adapter")
    assert MemberReference.from_dict(json.loads(json.dumps(reference.to_dict()))) == reference


def test_a_reference_of_another_version_is_read_as_far_as_it_is_known() -> None:
    saved = REFERENCE.to_dict()
    del saved["adapter"], saved["adapter_revision"]  # as 0.1.0 wrote it
    assert MemberReference.from_dict(saved | {"colour": "blue"}) == REFERENCE


def test_places_are_what_a_member_is_loaded_from() -> None:
    assert REFERENCE.places == ["some/llama"]
    assert dataclasses.replace(REFERENCE, adapter="./tuned").places == ["some/llama", "./tuned"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fingerprint_survives_a_change_of_dtype(dtype: torch.dtype) -> None:
    before = fingerprint(tiny_model("llama"))
    assert same_weights(before, fingerprint(tiny_model("llama").to(dtype=dtype)))
    assert not same_weights(before, fingerprint(tiny_model("llama", seed=1).to(dtype=dtype)))


def test_another_base_is_refused_by_both_names() -> None:
    saved = dataclasses.replace(REFERENCE, fingerprint=fingerprint(tiny_model("llama")))
    check_same_base(saved, saved, "anchor")
    deeper = MemberReference.from_config(tiny_config("llama", num_hidden_layers=4), "other/llama")
    with pytest.raises(WrongBaseError, match="'some/llama' as anchor, but 'other/llama' is of another shape"):
        check_same_base(saved, deeper, "anchor")
    other = dataclasses.replace(
        REFERENCE, name_or_path="other/llama", fingerprint=fingerprint(tiny_model("llama", seed=1))
    )
    with pytest.raises(WrongBaseError, match="'other/llama' is a model of the same shape with other weights"):
        check_same_base(saved, other, "anchor")


def test_the_commit_of_a_file_in_the_hubs_cache() -> None:
    assert commit_of("/hub/models--some--llama/snapshots/0123abc/config.json") == "0123abc"
    assert commit_of(Path("models/llama/config.json")) is None
    assert commit_of("/data/snapshots/0123abc/config.json") is None, "a folder of that name that is not the hub's"


def adapted(seed: int, name: str = "default") -> Any:
    """A llama with a LoRA as training leaves one: matrices large enough for two of them to have equal sums."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "o_proj", "up_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(tiny_model("llama", hidden_size=128, intermediate_size=256), config, name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in wrapped.named_parameters():
            if "lora_" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return wrapped.get_base_model()


def test_adapters_of_one_kind_are_told_apart() -> None:
    one, other = fingerprint(adapted(0)), fingerprint(adapted(1))
    assert same_weights({"adapters": one["adapters"]}, {"adapters": other["adapters"]}), "so the sums are not enough"
    assert not same_weights(one, other)
    assert same_weights(one, fingerprint(adapted(0).to(torch.bfloat16)))
    assert same_weights(one, fingerprint(adapted(0, name="role_expert"))), "the name of an adapter says nothing"


def test_one_of_several_adapters_is_counted_alone() -> None:
    peft = pytest.importorskip("peft")
    both = adapted(0, name="self_attn")  # a name that is a part of many parameters' names too
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "o_proj", "up_proj"])
    peft.inject_adapter_in_model(config, both, adapter_name="second")
    assert fingerprint(both, "self_attn") == fingerprint(adapted(0))
    bare = fingerprint(tiny_model("llama", hidden_size=128, intermediate_size=256))
    assert fingerprint(both, BARE) == bare
    assert not same_weights(fingerprint(both), fingerprint(both, "self_attn"))


def test_layers_are_counted_whatever_the_kind_of_adapter() -> None:
    """As format 1 counted them: a folder that was saved with such a member is read."""
    peft = pytest.importorskip("peft")
    config = peft.LoHaConfig(r=2, target_modules=["q_proj"])
    wrapped = peft.get_peft_model(tiny_model("llama"), config)
    assert fingerprint(wrapped.get_base_model())["adapters"][0] == len(wrapped.get_base_model().model.layers)


def with_copies(seed: int, names: tuple[str, ...] = ("default",), targets: Any = "dummy-target-modules") -> Any:
    """A llama of which each adapter has a head and norms of its own; without targets these are all there is of it."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=targets, modules_to_save=["lm_head", "norm"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(tiny_model("llama"), config, names[0])
    for name in names[1:]:
        wrapped.add_adapter(name, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in wrapped.named_parameters():
            if "modules_to_save" in parameter_name:
                parameter.mul_(
                    1 + 0.05 * torch.randn(parameter.shape, generator=generator)
                )  # as a little training does
            elif "lora_" in parameter_name:
                parameter.fill_(0.5)
    return wrapped.get_base_model()


@pytest.mark.parametrize("targets", ["dummy-target-modules", ["q_proj"]], ids=["copies alone", "and layers"])
def test_an_adapters_own_copies_of_modules_are_told_apart(targets: Any) -> None:
    one, other = fingerprint(with_copies(0, targets=targets)), fingerprint(with_copies(1, targets=targets))
    assert not same_weights(one, other)
    assert same_weights(one, fingerprint(with_copies(0, targets=targets).to(torch.bfloat16)))
    assert same_weights(one, fingerprint(with_copies(0, ("role_expert",), targets))), "the name says nothing"
    bare = fingerprint(tiny_model("llama"))
    assert not same_weights(one, bare)
    assert not same_weights(bare, one), "the adapter is new"
    both = with_copies(0, ("first", "second"), targets)
    assert fingerprint(both, BARE) == bare
    assert not same_weights(fingerprint(both, "first"), fingerprint(both, "second"))
    assert one["modules_to_save"][0] == fingerprint(both, "second")["modules_to_save"][0] == 8, (
        "the head and seven norms"
    )


def test_a_fingerprint_from_before_modules_were_counted_still_matches() -> None:
    model = with_copies(0, targets=["q_proj"])
    saved = {name: values for name, values in fingerprint(model).items() if not name.startswith("modules_to_save")}
    # they were sampled among the matrices, under the names that PEFT gives them
    head = model.lm_head.modules_to_save["default"].weight.flatten()
    saved["lm_head.modules_to_save.default.weight"] = head[[len(head) // 3, 2 * len(head) // 3]].tolist()
    assert same_weights(saved, fingerprint(model))


def test_a_base_with_another_adapter_is_refused_by_the_adapters_name() -> None:
    saved = dataclasses.replace(REFERENCE, adapter="some/adapter", fingerprint={"adapters": [4.0, 8.0]})
    bare = dataclasses.replace(REFERENCE, fingerprint={"adapters": [0.0, 0.0]})
    with pytest.raises(WrongBaseError, match="'some/llama with the adapter some/adapter' as anchor, but 'some/"):
        check_same_base(saved, bare, "anchor")
