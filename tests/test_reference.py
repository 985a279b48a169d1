"""Which model a member is: a reference survives being saved, and tells one training run's weights from another's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from lmcompose.errors import WrongBaseError
from lmcompose.reference import MemberReference, check_same_base, commit_of, fingerprint, same_weights
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
