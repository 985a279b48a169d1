"""Where members go: `device_map` for all, by role, or of a model's modules; what would be offloaded is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.errors import ConfigurationError, MemberError
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 9)
MODULES = {"model.embed_tokens": "cpu", "model.layers": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("devices") / "llama", "llama")


@pytest.fixture(scope="module")
def saved(folder: Path) -> tuple[Path, torch.Tensor]:
    model = randomise(compose(folder, {"law": folder}))
    model.save_pretrained(folder.with_name("saved"))
    return folder.with_name("saved"), plain_logits(model, IDS)


Make = Callable[[Path, Any], Any]
WAYS: dict[str, Make] = {
    "compose": lambda folder, devices: compose(folder, {"law": folder}, device_map=devices),
    "combine": lambda folder, devices: combine("anchor + law", {"anchor": folder, "law": folder}, device_map=devices),
    "proxy_tune": lambda folder, devices: proxy_tune(folder, tiny_model("gpt2"), device_map=devices),
    "extend": lambda folder, devices: extend(compose(folder, {"old": folder}), {"law": folder}, device_map=devices),
}


@pytest.mark.parametrize("way", ["compose", "combine", "extend"])
@pytest.mark.parametrize(
    "devices",
    ["cpu", "auto", {"": "cpu"}, torch.device("cpu"), {"anchor": "cpu", "law": {"": "cpu"}}, {"law": "auto"},
     {"law": MODULES | {"lm_head": "cpu"}}],
    ids=str,
)  # fmt: skip
def test_devices_that_are_there(way: str, devices: Any, folder: Path) -> None:
    model = WAYS[way](folder, devices)
    plain = plain_logits(tiny_model("llama"), IDS)
    expected = 2 * plain if way == "combine" else plain
    torch.testing.assert_close(plain_logits(model, IDS), expected, atol=1e-5, rtol=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("devices", ["auto", {"": "cpu"}, {"anchor": {"": "cpu"}, "law": "auto"}], ids=str)
def test_a_saved_composition(devices: Any, saved: tuple[Path, torch.Tensor]) -> None:
    assert torch.equal(plain_logits(lmcompose.load(saved[0], device_map=devices), IDS), saved[1])


def test_each_role_goes_where_it_is_told(folder: Path) -> None:
    """The meta device stands in for another one: nothing is read onto it, and the bridges follow the anchor."""
    model = compose(folder, {"law": folder}, device_map={"anchor": "cpu", "law": "meta"})
    assert [next(member.parameters()).device.type for member in model.members.values()] == ["cpu", "meta"]
    assert {parameter.device.type for parameter in model.bridges.parameters()} == {"cpu"}
    model = combine("a + b", {"a": folder, "b": save_tiny(folder.with_name("b"), "gpt2")}, device_map={"b": "meta"})
    assert [next(member.parameters()).device.type for member in model.members.values()] == ["cpu", "meta"]


OFFLOADED = r"for the (anchor|base)\) on the disk, to be fetched for every pass\. A composition keeps its members where"


@pytest.mark.parametrize("way", list(WAYS))
def test_the_disk_is_refused_before_weights_are_read(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = MODULES | {"lm_head": "disk"}
    if way == "extend":
        with pytest.raises(MemberError, match=r"for the law\) on the disk"):
            WAYS[way](folder, {"law": devices})
        return
    with pytest.raises(MemberError, match=OFFLOADED):
        WAYS[way](folder, devices)


def test_what_becomes_of_auto_is_looked_at(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate spreads a model that does not fit by itself: here it is told of a machine with little memory."""
    import accelerate.utils.modeling as spreading

    monkeypatch.setattr(spreading, "get_max_memory", lambda *_: {"cpu": 60_000})
    monkeypatch.setattr("transformers.integrations.accelerate.get_max_memory", lambda *_: {"cpu": 60_000})
    with pytest.raises(MemberError, match=OFFLOADED):
        compose(folder, {"law": folder}, device_map={"anchor": "auto"})


def test_a_gpu_with_the_rest_in_the_cpus_memory_is_refused(folder: Path) -> None:
    with pytest.raises(MemberError, match=r"in the CPU's memory, and the others on a GPU, to be fetched for every"):
        compose(folder, {"law": folder}, device_map={"anchor": MODULES | {"model.layers": 0, "lm_head": "cpu"}})


@pytest.mark.parametrize("way", ["compose", "combine", "extend"])
def test_a_role_that_is_misspelt_is_named(way: str, folder: Path, saved: tuple[Path, torch.Tensor]) -> None:
    for devices in ({"anchr": "cpu"}, {"anchor": "cpu", "anchr": "cpu"}):
        with pytest.raises(ConfigurationError, match=r"no member 'anchr'\. Did you mean 'anchor'\?"):
            WAYS[way](folder, devices)
        with pytest.raises(ConfigurationError, match=r"no member 'anchr'\. Did you mean 'anchor'\?"):
            lmcompose.load(saved[0], device_map=devices)
