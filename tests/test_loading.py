"""What a member may be named by: a mistyped path is an error at once, and only a hub id is asked of the hub."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from lmcompose.errors import MemberError, SavedFolderError
from lmcompose.loading import plan_member
from lmcompose.places import is_missing_folder
from lmcompose.saved import ComposedConfig, read_config
from tests.tiny import tiny_model

PATHS = ["./model", "../model", "/models/big", "~/models/big", "models/big/v2", "models\\big", Path("big")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What transformers was asked for: for what is no folder it would go on to ask the hub, several times."""
    names: list[object] = []

    def ask(name: object, **_: object) -> None:
        names.append(name)
        raise OSError("offline")

    monkeypatch.setattr(AutoConfig, "from_pretrained", ask)
    return names


@pytest.mark.parametrize("source", PATHS, ids=str)
def test_a_path_that_is_not_there_is_refused_without_asking_the_hub(source: str | Path, asked: list[object]) -> None:
    with pytest.raises(MemberError, match=r"for the anchor.*no such folder"):
        plan_member(source)
    with pytest.raises(SavedFolderError, match="no such folder"):
        read_config(ComposedConfig, str(source) if isinstance(source, str) else "./big")
    assert asked == []


def test_a_hub_id_is_asked_of_the_hub(asked: list[object]) -> None:
    for name in ("gpt2", "someone/model-1.5b"):
        with pytest.raises(MemberError, match="offline"):
            plan_member(name)
    assert asked == ["gpt2", "someone/model-1.5b"]


def test_a_path_that_is_there_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model("llama").config.save_pretrained(tmp_path / "a" / "b" / "c")
    monkeypatch.chdir(tmp_path)
    for source in ("./a/b/c", "a/b/c", Path("a/b/c"), str(tmp_path / "a/b/c")):
        assert not is_missing_folder(source)
        assert plan_member(source).model_type == "llama"


def test_a_home_folder_is_written_out_in_the_advice() -> None:
    with pytest.raises(MemberError, match=f"write {Path.home()}/nowhere"):
        plan_member("~/nowhere")


def test_what_is_not_there_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, each question takes half a minute: an adapter is then looked for among what was downloaded before."""
    asked = []

    def ask(name: object, file: str, **options: object) -> None:
        asked.append((name, file, options["local_files_only"]))

    monkeypatch.setattr("lmcompose.adapters.cached_file", ask)
    for name in ("./model", "nothing.gguf", "models/nothing.gguf", "models/big/v2"):
        with pytest.raises(MemberError):
            plan_member(name)
    assert asked == []
    with pytest.raises(MemberError, match=r"couldn't connect|offline"):
        plan_member("someone/model")
    assert asked == [("someone/model", "adapter_config.json", True)]
