"""The stories experiment at the smallest size that still runs all of it, on a tiny random model and tokenizer."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from lmcompose.errors import DataError, MemberError
from lmcompose.experiments import standard_library
from lmcompose.experiments.stories import main, read_arguments, run_stories, variant_of
from lmcompose.reporting.tables import stories_grid
from tests.tiny import save_tiny, tiny_model


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("member"), "llama")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text("\n".join(" ".join(f"w{(7 * line + word) % 40}" for word in range(20)) for line in range(400)))
    return path


@pytest.fixture(scope="module")
def result(member, text):
    return run_stories(member, text, seeds=(0, 1), steps=2, anchor_steps=2, say=lambda line: None)


def test_before_training_the_loss_is_the_plain_models_bit_for_bit(result):
    for pair in result["untrained"].values():
        assert pair["composed"] == pair["plain"]


def test_every_variant_is_trained_with_every_seed(result):
    assert list(result["results"]) == ["anchor", "augmenting", "pretrained", "random", "shuffled"]
    bare = result["results"]["anchor"]["losses"][0]
    for name in ("pretrained", "random", "shuffled"):
        losses = result["results"][name]["losses"]
        assert len(set(losses)) == len(losses) == 2
        assert bare not in losses


def test_the_result_is_json_and_has_its_table(result):
    table = stories_grid(json.loads(json.dumps(result)))
    assert [row[0] for row in table.rows][2:] == ["m_A stories260K", "m_A random", "m_A shuffled"]
    assert table.rows[3][3].startswith(("+", "-"))


def test_a_shuffled_model_keeps_each_tensors_values_and_loses_their_places():
    pretrained = tiny_model("llama")
    shuffled = variant_of(pretrained, "shuffled", seed=0)
    for (name, new), old in zip(shuffled.named_parameters(), pretrained.parameters(), strict=True):
        assert torch.equal(new.flatten().sort().values, old.flatten().sort().values), name
        assert not torch.equal(new, old), name


def test_the_same_seed_gives_the_same_random_model():
    pretrained = tiny_model("llama")
    one, two, other = (variant_of(pretrained, "random", seed).lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_prose_and_code_of_the_standard_library_share_no_sentence():
    prose, code = standard_library.prose(), list(islice(standard_library.code(), 30))
    lines = [line for document in prose for line in document.splitlines()]
    assert len(lines) > 1000
    assert len(lines) == len(set(lines)), "a paragraph stands in two documents"
    everything = "\n".join(code)
    assert "def " in everything
    assert not any(line in everything for line in lines[:: len(lines) // 200])


def test_no_model_is_one_clear_error(tmp_path):
    with pytest.raises(MemberError, match="--stories FOLDER"):
        run_stories(tmp_path)


def test_the_command_says_where_the_model_is_to_be_named(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("STORIES", raising=False)
    monkeypatch.setattr("sys.argv", ["stories"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--stories FOLDER, or in the environment variable STORIES" in capsys.readouterr().err
    monkeypatch.setenv("STORIES", str(tmp_path / "moved"))
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(f"stories: There is no model in '{tmp_path / 'moved'}'.")


def test_the_environment_names_the_model_and_the_argument_goes_before_it(monkeypatch):
    monkeypatch.setenv("STORIES", "models/here")
    options, command = read_arguments(["--steps", "3"])
    assert options.stories == Path("models/here")
    assert command == "python -m lmcompose.experiments.stories --stories models/here --steps 3"
    options, command = read_arguments(["--stories=models/there"])
    assert options.stories == Path("models/there")
    assert command == "python -m lmcompose.experiments.stories --stories=models/there"


def test_too_short_a_text_is_one_clear_error(member, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("w1 w2 w3")
    with pytest.raises(DataError, match="give a longer one"):
        run_stories(member, short)


def test_the_documentation_shows_the_committed_result():
    root = Path(__file__).parents[2]
    committed = json.loads((root / "results" / "stories" / "stories.json").read_text(encoding="utf-8"))
    page = (root / "docs" / "stories.md").read_text(encoding="utf-8")
    assert stories_grid(committed).to_markdown() in page
    for variant in ("random", "shuffled"):
        assert committed["results"][variant]["minus_pretrained"][1] > 0, "the page says that the interval excludes zero"
