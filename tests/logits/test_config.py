"""The configuration of a logit composition: what cannot be computed is refused before a weight is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmcompose import LogitConfig
from lmcompose.errors import ConfigurationError
from lmcompose.logits.arithmetic import Plausibility
from lmcompose.logits.config import plausibility_fields

MEMBERS = {role: {"order": order} for order, role in enumerate(("base", "expert", "antiexpert"))}
PROXY = "base + alpha * (expert - antiexpert)"


def config(**changes: Any) -> LogitConfig:
    settings: dict[str, Any] = {"members": MEMBERS, "formula": PROXY, "parameters": {"alpha": 1.0}}
    return LogitConfig(**(settings | changes))


def test_what_is_right_passes() -> None:
    config().check()
    config(
        temperatures={"expert": 0.5}, scores="logprobs", missing_tokens="forbid",
        plausibility={"member": "base", "kind": "top_p", "value": 0.9},
    ).check()  # fmt: skip
    assert config().leader == "base"
    assert config().mask() is None
    assert config(plausibility={"member": "base", "kind": "ratio", "value": 0.1}).mask() == Plausibility(
        "base", "ratio", 0.1
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"formula": "base + alpha * (expert - antiexprt)"}, r"Unknown name 'antiexprt'.*Did you mean 'antiexpert'\?"),
        ({"formula": "base + alpha * expert"}, "'antiexpert' is given but the formula"),
        ({"parameters": {"alpha": 1.0, "beta": 2.0}}, "'beta' is given but the formula"),
        ({"parameters": {}}, "Unknown name 'alpha'"),
        ({"formula": "0 * base + alpha * (expert - antiexpert)", "parameters": {"alpha": 0.0}}, "the weights cancel"),
        ({"formula": "-base - alpha * (expert + antiexpert)"}, "no weight is positive"),
        ({"scores": "logit"}, r"scores = 'logit' is none of 'logits', 'logprobs'. Did you mean 'logits'\?"),
        ({"missing_tokens": "ignore"}, "missing_tokens = 'ignore' is none of 'leader', 'forbid', 'lowest'"),
        ({"temperatures": {"experts": 0.5}}, r"'experts' is none of .* Did you mean 'expert'\?"),
        ({"temperatures": {"expert": 0}}, "a number above 0, not 0"),
        ({"temperatures": {"expert": "hot"}}, "a number above 0, not 'hot'"),
        ({"plausibility": {"member": "amateur", "kind": "ratio", "value": 0.1}}, "names 'amateur', which is no member"),
        ({"plausibility": {"member": "base", "kind": "topk", "value": 5}}, r"Did you mean 'top_k'\?"),
        ({"plausibility": {"member": "base", "kind": "ratio", "value": 2}}, "above 0 and at most 1"),
        ({"drafter": "expart"}, r"drafter = 'expart' is none of .* Did you mean 'expert'\?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        config(**changes).check()


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), float("inf"), [], [1.0, "x"]])
def test_a_default_is_a_number_or_one_per_step(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"alpha.*give a number"):
        config(parameters={"alpha": value}).check()
    config(parameters={"alpha": [1.0, 0.5]}).check()


@pytest.mark.parametrize("value", [torch.tensor(1.0), lambda step: 1.0], ids=["tensor", "function"])
def test_what_cannot_be_saved_is_no_default(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be the default of a parameter.*generate\(\.\.\., alpha="):
        config(parameters={"alpha": value}).check()


def test_weights_that_cancel_at_a_later_step_are_refused() -> None:
    changes = {"formula": "(1 - alpha) * base + alpha * (expert - antiexpert)"}
    config(**changes, parameters={"alpha": [0.0, 0.5]}).check()
    members = {"members": {"base": {"order": 0}}, "formula": "(1 - alpha) * base"}
    with pytest.raises(ConfigurationError, match="the weights cancel"):
        config(**members, parameters={"alpha": [0.0, 1.0]}).check()


@pytest.mark.parametrize("role", ["keys", "items", "train", "forward", "type"])
def test_a_role_that_torch_needs_itself_is_refused(role: str) -> None:
    members = {"base": {"order": 0}, role: {"order": 1}}
    with pytest.raises(ConfigurationError, match=f"cannot be called '{role}'"):
        LogitConfig(members=members, formula=f"base + {role}").check()


def test_a_drafter_need_not_be_in_the_formula_but_cannot_lead() -> None:
    members = {role: {"order": order} for order, role in enumerate(("base", "draft"))}
    LogitConfig(members=members, formula="base", drafter="draft").check()
    with pytest.raises(ConfigurationError, match="'draft' is given but the formula 'base' does not use it"):
        LogitConfig(members=members, formula="base").check()
    swapped = {role: {"order": order} for order, role in enumerate(("draft", "base"))}
    with pytest.raises(ConfigurationError, match=r"'draft', gives the composition its tokens.*Put.*'base'"):
        LogitConfig(members=swapped, formula="base", drafter="draft").check()
    similar = {role: {"order": order} for order, role in enumerate(("base", "base_draft"))}
    LogitConfig(members=similar, formula="base", drafter="base_draft").check()


def test_members_come_back_in_their_order() -> None:
    """JSON is written with sorted keys, and the first member leads."""
    members = {"b": {"order": 0}, "a": {"order": 1}}
    loaded = LogitConfig.from_dict(LogitConfig(members=members, formula="b + a").to_dict())
    assert list(loaded.members) == ["b", "a"]
    assert loaded.leader == "b"


def test_a_mask_in_any_form() -> None:
    fields = {"member": "base", "kind": "top_k", "value": 5}
    assert plausibility_fields(Plausibility("base", "top_k", 5)) == fields
    assert plausibility_fields(fields) == fields
    for wrong in (
        "ratio",
        0.1,
        {"member": "base"},
        fields | {"values": 5},
        {"member": "base", "kind": "ratio", "valu": 1},
    ):
        with pytest.raises(ConfigurationError, match="is no mask"):
            plausibility_fields(wrong)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'value'\?"):
        plausibility_fields({"member": "base", "kind": "ratio", "valu": 1})
