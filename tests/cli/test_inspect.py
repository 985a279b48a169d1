"""`lmcompose inspect` tells what is in a saved folder."""

import json
import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM

from lmcompose import CalmForCausalLM, combine, compose, extend
from tests.cli.conftest import Proxy, Run, Saved, one_line
from tests.tiny import save_tiny, tiny_tokenizer


def test_json(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    result = run("inspect", saved.folder, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["connections"] == {"domain": [[1, 2], [3, 3]]}
    assert report["parameters"] == model.num_composition_parameters() == 2 * (24 * 32 + 4 * 32 * 32)
    assert report["format_version"] == 1
    assert list(report["members"]) == ["anchor", "domain"]
    anchor = report["members"]["anchor"]
    assert anchor["name_or_path"] == str(saved.anchor)
    assert anchor["parameters"] == AutoModelForCausalLM.from_pretrained(saved.anchor).num_parameters()
    assert (anchor["revision"], anchor["model_type"]) == (None, "llama")
    assert report["provenance"]["versions"]["transformers"]


def test_text(run: Run, saved: Saved) -> None:
    result = run("inspect", saved.folder)
    assert result.exit_code == 0, result.stderr
    for text in ("anchor", "domain", "(1, 2), (3, 3)", "9,728 composition parameters", "linear projection", "format 1"):
        assert text in result.stdout


def test_options_beyond_the_paper(run: Run, saved: Saved, tmp_path: Path) -> None:
    model = compose(saved.anchor, saved.augmenting, connections=[(1, 2)], gate=True, norm=True, rank=4)
    model.save_pretrained(tmp_path / "saved")
    report = json.loads(run("inspect", tmp_path / "saved", "--json").stdout)
    assert (report["gate"], report["norm"], report["rank"], report["projection"]) == (True, True, 4, "linear")
    assert report["parameters"] == 4 * (24 + 9 * 32) + 1
    text = " ".join(run("inspect", tmp_path / "saved").stdout.split())
    assert "linear projection, with gate, norm, rank 4 (beyond the paper)" in text
    assert "beyond" not in run("inspect", saved.folder).stdout
    report = json.loads(run("inspect", saved.folder, "--json").stdout)
    assert (report["gate"], report["norm"], report["rank"]) == (False, False, None)


def test_several_augmenting_models_and_what_was_added(run: Run, saved: Saved, tmp_path: Path) -> None:
    connections = {"zoology": [(1, 0)], "law": [(2, 1), (3, 2), (3, 3)]}
    added = {"zoology": saved.augmenting, "law": saved.anchor}
    model = extend(saved.folder, added, connections=connections)
    model.save_pretrained(tmp_path / "saved")
    report = json.loads(run("inspect", tmp_path / "saved", "--json").stdout)
    assert list(report["members"]) == ["anchor", "domain", "zoology", "law"]
    assert report["connections"]["law"] == [[2, 1], [3, 2], [3, 3]]
    narrow, like = 24 * 32 + 4 * 32 * 32, 32 * 32 + 4 * 32 * 32
    assert report["parameters_of"] == {"domain": 2 * narrow, "zoology": narrow, "law": 3 * like}
    assert report["parameters"] == sum(report["parameters_of"].values()) == model.num_composition_parameters()
    result = run("inspect", tmp_path / "saved").stdout
    rows = [line for line in result.splitlines() if "(" in line and "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["domain", "zoology", "law"]
    assert "(2, 1), (3, 2), (3, 3)" in rows[2]
    assert f"{3 * like:,}" in rows[2]
    assert f"zoology, law added to {saved.folder} (domain)." in " ".join(result.split())


def test_unfrozen_layers_and_readers_of_the_prompt_are_named(run: Run, saved: Saved, tmp_path: Path) -> None:
    added = {"more": saved.augmenting}
    model = extend(saved.folder, added, connections=[(2, 1)], reads="prompt", unfreeze={"anchor": [2, 3], "more": [1]})
    model.save_pretrained(tmp_path / "saved")
    assert json.loads(run("inspect", saved.folder, "--json").stdout)["unfreeze"] == {}
    report = json.loads(run("inspect", tmp_path / "saved", "--json").stdout)
    assert report["unfreeze"] == {"anchor": [2, 3], "more": [1]}
    assert report["reads"] == {"domain": "text", "more": "prompt"}
    assert report["parameters"] == model.num_composition_parameters() > sum(report["parameters_of"].values())
    text = " ".join(run("inspect", tmp_path / "saved").stdout.split())
    assert "Unfrozen layers, with weights of its own: anchor 2, 3; more 1." in text
    assert "They read the prompt alone: more." in text


def test_members_that_are_not_here(run: Run, saved: Saved, tmp_path: Path) -> None:
    shutil.copytree(saved.folder, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["members"]["domain"]["name_or_path"] = str(tmp_path / "elsewhere")
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    assert json.loads(run("inspect", tmp_path / "copy", "--json").stdout)["members"]["domain"]["parameters"] is None
    assert "not found here" in run("inspect", tmp_path / "copy").stdout


def test_a_folder_that_a_crash_set_aside_is_put_back(run: Run, saved: Saved, tmp_path: Path) -> None:
    """Where folders cannot be exchanged in one step, a crash can leave the old one under another name."""
    shutil.copytree(saved.folder, tmp_path / ".composition.lmcompose-old-0123abcd")
    assert run("inspect", tmp_path / "composition").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["composition"]


def test_what_is_no_composition(run: Run, saved: Saved, tmp_path: Path) -> None:
    result = run("inspect", saved.anchor)
    assert result.exit_code == 1
    assert "compose it with another model" in one_line(result)
    shutil.copytree(saved.folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    result = run("inspect", tmp_path / "cut")
    assert result.exit_code == 1
    assert "is missing or cut short" in one_line(result)


# ------------------------------------------------------------------------------------------------ logit compositions


def test_the_formula_and_the_vocabularies(run: Run, proxy: Proxy) -> None:
    report = json.loads(run("inspect", proxy.folder, "--json").stdout)
    assert (report["model_type"], report["format_version"]) == ("logit_composition", 1)
    assert (report["formula"], report["parameters"]) == ("base + alpha * (expert - antiexpert)", {"alpha": 1.0})
    assert (report["scores"], report["plausibility"], report["missing_tokens"]) == ("logits", None, "leader")
    assert list(report["members"]) == ["base", "expert", "antiexpert"]
    expert = report["members"]["expert"]
    assert expert["name_or_path"] == str(proxy.expert)
    assert expert["parameters"] == AutoModelForCausalLM.from_pretrained(proxy.expert).num_parameters()
    assert list(report["vocabularies"]) == ["expert", "antiexpert"]
    assert report["vocabularies"]["expert"]["identical"] is True
    text = run("inspect", proxy.folder).stdout
    for part in (
        "base + alpha * (expert - antiexpert)   with alpha = 1.0",
        "100.00%",
        "same tokens, same ids",
        "format 1",
    ):
        assert part in text


def test_vocabularies_that_differ_masks_and_shared_weights(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "gpt2", vocab_size=99)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(other)
    file = other / "tokenizer.json"
    words = json.loads(file.read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    vocabulary["gone"] = vocabulary.pop("w3")
    file.write_text(json.dumps(words))
    mask = {"member": "base", "kind": "top_p", "value": 0.9}
    members = {"base": proxy.base, "twin": proxy.base, "other": other}
    model = combine(
        "base + twin - 0.5 * other", members, plausibility=mask, temperatures={"other": 2.0}, drafter="other"
    )
    model.save_pretrained(tmp_path / "saved")
    report = json.loads(run("inspect", tmp_path / "saved", "--json").stdout)
    found = report["vocabularies"]["other"]
    assert (found["leader_tokens"], found["missing_tokens"], found["moved_tokens"], found["extra_tokens"]) == (
        97,
        1,
        2,
        2,
    )
    assert found["coverage"] == 96 / 97
    assert (found["leader_rows"], found["member_rows"]) == (97, 99)
    assert found["differences"][0] == f"'w3' (id 25) is missing in '{other}'"
    assert [member["shares_with"] for member in report["members"].values()] == [None, "base", None]
    text = run("inspect", tmp_path / "saved").stdout
    for part in ("98.97%", "97 : 99", "top_p 0.9", "(temperature 2)", "those of base", "Drafter", "'w3' (id 25)"):
        assert part in text, part


def test_a_logit_composition_whose_members_are_not_here(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    shutil.copytree(proxy.folder, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["members"]["expert"]["name_or_path"] = str(tmp_path / "elsewhere")
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    report = json.loads(run("inspect", tmp_path / "copy", "--json").stdout)
    assert report["members"]["expert"]["parameters"] is None
    assert report["vocabularies"]["expert"]["compared"] is False
    assert report["vocabularies"]["antiexpert"]["compared"] is True
    text = run("inspect", tmp_path / "copy").stdout
    assert "not found here" in text
    assert "no tokenizer was found" in text


def test_a_composition_in_a_composition(run: Run, saved: Saved, proxy: Proxy, tmp_path: Path) -> None:
    model = combine("a + b", {"a": saved.folder, "b": proxy.expert})
    model.save_pretrained(tmp_path / "saved")
    report = json.loads(run("inspect", tmp_path / "saved", "--json").stdout)
    assert report["members"]["a"]["parameters"] == sum(p.numel() for p in model.member("a").parameters())
    assert report["members"]["a"]["model_type"] == "calm"


def test_a_logit_composition_that_is_cut_short(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    shutil.copytree(proxy.folder, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    result = run("inspect", tmp_path / "cut")
    assert result.exit_code == 1
    assert "is missing or cut short" in one_line(result)
