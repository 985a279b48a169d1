"""A recipe of a logit composition: a mistake is named with its line and with what is right."""

from pathlib import Path

import pytest

from lmcompose.errors import RecipeError
from lmcompose.logits.recipe import LogitRecipe
from lmcompose.recipe import read_recipe, recipe_keys

GOOD = """\
members:
  base: big
  expert: {model: small, temperature: 0.5, revision: v2}
  antiexpert:
    model: small
    dtype: bfloat16
    device_map: cuda:1
formula: base + alpha * (expert - antiexpert)
alpha: 1.5
output: out
"""
FORMULA = "formula: base + alpha * (expert - antiexpert)"
PRESET = "preset: proxy_tuning"


def read(text: str) -> LogitRecipe:
    return read_recipe(text, LogitRecipe)


def changed(*changes: tuple[str, str]) -> str:
    text = GOOD
    for was, becomes in changes:
        assert was in text
        text = text.replace(was, becomes)
    return text


def message(*changes: tuple[str, str]) -> str:
    with pytest.raises(RecipeError) as caught:
        read(changed(*changes))
    return str(caught.value)


def test_what_a_recipe_asks_for() -> None:
    recipe = read(changed(("output: out", "output: out\ndtype: float16\nscores: logprobs\nmin_coverage: 0.5")))
    options = recipe.options()
    assert options["formula"] == "base + alpha * (expert - antiexpert)"
    assert options["parameters"] == {"alpha": 1.5}
    assert options["temperatures"] == {"expert": 0.5}
    assert options["revisions"] == {"expert": "v2"}
    assert (options["scores"], options["min_coverage"], options["plausibility"]) == ("logprobs", 0.5, None)
    assert recipe.dtypes() == {"base": "float16", "expert": "float16", "antiexpert": "bfloat16"}
    assert recipe.device_maps() == {"antiexpert": "cuda:1"}
    assert read(changed(("    device_map: cuda:1\n", ""))).device_maps() is None
    assert read(GOOD).dtypes() == {"base": None, "expert": None, "antiexpert": "bfloat16"}


def test_a_preset_in_place_of_a_formula() -> None:
    recipe = read(changed((FORMULA, "preset: dexperts"), ("alpha: 1.5\n", "")))
    assert (recipe.options()["formula"], recipe.options()["parameters"]) == ("dexperts", {})
    assert read(changed((FORMULA, "preset: dexperts"))).options()["parameters"] == {"alpha": 1.5}
    mask = "plausibility: {member: base, kind: top_k, value: 5}\noutput"
    assert read(changed(("output", mask))).options()["plausibility"] == {"member": "base", "kind": "top_k", "value": 5}
    assert read(changed(("output", "plausibility: false\noutput"))).options()["plausibility"] is False


@pytest.mark.parametrize("number", ["1e-3", "-0.5", "2"])
def test_numbers_as_yaml_writes_them(number: str) -> None:
    assert read(changed(("alpha: 1.5", f"alpha: {number}"))).options()["parameters"] == {"alpha": float(number)}


def test_the_character_in_a_formula_that_is_in_the_way() -> None:
    assert message(("(expert -", "(exprt -")) == (
        "recipe, line 8: 'formula': Unknown name 'exprt'. The members are base, expert, antiexpert, the parameters are "
        "alpha. Did you mean 'expert'?\n"
        "  base + alpha * (exprt - antiexpert)\n"
        "                  ^"
    )
    assert message(("antiexpert)\n", "antiexpert\n")).endswith(
        "  base + alpha * (expert - antiexpert\n" + " " * 17 + "^"
    )
    # folded over two lines, it is one text
    folded = message((FORMULA, "formula: >-\n  base + alpha\n  * (expert - antiexprt)"))
    assert folded.startswith("recipe, line 8: 'formula': Unknown name 'antiexprt'.")
    assert folded.endswith("\n  base + alpha * (expert - antiexprt)\n" + " " * 27 + "^")
    assert "give it a value under 'parameters'.\n" in message(("alpha: 1.5\n", ""))


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        ("formula:", "formla:", "line 8: unknown key 'formla'. Did you mean 'formula'?"),
        (FORMULA, "", "line 1: give either 'formula' or 'preset'"),
        (FORMULA, f"{FORMULA}\n{PRESET}", "line 1: give either 'formula' or 'preset'"),
        (FORMULA, "preset: proxy_tunig", "line 8: 'preset': There is no preset 'proxy_tunig'."),
        (FORMULA, "formula: proxy_tuning", "line 8: 'formula': this is the name of a preset. Write `preset: pro"),
        (FORMULA, "preset: contrastive", "line 2: 'members.base': the preset 'contrastive' has no such member."),
        ("(expert - antiexpert)", "expert", "line 4: 'members.antiexpert': the formula 'base + alpha * expert' does"),
        ("alpha *", "2 *", "line 9: 'alpha': the formula 'base + 2 * (expert - antiexpert)' has no such parameter."),
        ("alpha: 1.5", "alpha: high", "line 9: 'alpha' must be a number or a list of numbers (one for each step)"),
        ("alpha: 1.5", "alpha: yes", "line 9: 'alpha' must be a number or a list of numbers (one for each step), not "),
        ("alpha: 1.5", "alpha: []", "line 9: 'alpha' must be a number or a list of numbers (one for each step), not "),
        ("alpha: 1.5", "alpha: .inf", "line 9: 'alpha' must be a finite number, not inf."),
        ("alpha: 1.5", "alpha: [2, .inf]", "line 9: 'alpha"),
        ("alpha: 1.5", "parameters:\n  alhpa: 1", "line 8: 'formula': Unknown name 'alpha'"),
        ("alpha: 1.5", "parameters: {alpha: 1, beta: 2}", "line 9: 'parameters.beta': the formula"),
        ("alpha: 1.5", "alpha: 1\nparameters: {alpha: 2}", "line 10: 'parameters.alpha': alpha is given here and"),
        ("base + alpha * (", "base - base + 0 * alpha * (", "line 8: 'formula': In the formula"),
        ("temperature:", "temprature:", "line 3: unknown key 'temprature' in 'members.expert'. Did you mean 'temp"),
        ("temperature: 0.5", "temperature: 0", "line 3: 'members.expert.temperature' must be greater than 0, not 0."),
        ("model: small, temp", "temp", "line 3: 'members.expert': give a member 'model' (a hub id, a folder or a GGUF"),
        ("dtype: bfloat16", "dtype: bfloat", "line 6: 'members.antiexpert.dtype' must be 'auto', 'float32'"),
        ("base: big", "base:", "line 2: key 'members.base' has no value."),
        ("base: big", "base: [a]", "line 2: 'members.base' must be indented `key: value` lines"),
        ("output", "drafter: exprt\noutput", "line 10: 'drafter': drafter = 'exprt' is none of 'base', 'expert',"),
        ("output", "scores: logit\noutput", "line 10: 'scores' must be 'logits' or 'logprobs', not 'logit'."),
        ("output", "missing_tokens: leadr\noutput", "line 10: 'missing_tokens' must be 'leader', 'forbid' or 'lowest'"),
        ("output", "min_coverage: 2\noutput", "line 10: 'min_coverage' must be less than or equal to 1, not 2."),
        ("output", "plausibility: true\noutput", "line 10: 'plausibility' must be indented `key: value` lines, not Tr"),
        ("output: out\n", "", "recipe: missing key 'output'."),
    ],
)  # fmt: skip
def test_a_mistake_is_named(was: str, becomes: str, expected: str) -> None:
    assert expected in message((was, becomes))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (
            "{member: bas, kind: ratio, value: 0.1}",
            "'plausibility.member': The plausibility mask names 'bas', which",
        ),
        (
            "{member: base, kind: rato, value: 0.1}",
            "'plausibility.kind' must be 'ratio', 'top_p' or 'top_k', not",
        ),
        (
            "{member: base, kind: ratio, value: 2}",
            "'plausibility.value': ratio = 2.0: give a number above 0 and",
        ),
        ("{member: base, kind: ratio}", "missing key 'value' in 'plausibility'."),
        ("{membr: base, kind: ratio, value: 1}", "unknown key 'membr' in 'plausibility'. Did you mean 'member'?"),
    ],
)
def test_a_mistake_in_the_mask(mask: str, expected: str) -> None:
    assert f"recipe, line 10: {expected}" in message(("output", f"plausibility: {mask}\noutput"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("forward", "line 2: 'members.forward': A member cannot be called 'forward'."),
        ("b-1", "line 2: 'members.b-1': 'b-1' cannot be the name of a member in a formula."),
    ],
)
def test_names_that_a_member_cannot_have(name: str, expected: str) -> None:
    assert expected in message(("  base:", f"  {name}:"), ("base +", "expert +"))


def test_the_members_of_a_preset() -> None:
    assert "line 2: 'members.bse': the preset 'proxy_tuning' has no such member. Did you mean 'base'?" in message(
        (FORMULA, PRESET), ("  base:", "  bse:")
    )
    assert "line 1: 'members': the preset 'proxy_tuning' needs 'base' too: the strong model" in message(
        (FORMULA, PRESET), ("  base: big\n", "")
    )
    contrastive = "members: {expert: big, amateur: small}\npreset: contrastive\nalpha: 1\noutput: out\n"
    with pytest.raises(RecipeError, match=r"line 3: 'alpha': the formula 'expert - amateur' has no such parameter"):
        read(contrastive)


def test_sources_start_from_the_recipes_folder(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "small.gguf").write_bytes(b"")
    recipe = read(changed(("model: small\n", "model: some/hub-id\n"), ("model: small,", "model: small.gguf,")))
    assert recipe.sources(tmp_path) == {
        "base": str(tmp_path / "big"),
        "expert": str(tmp_path / "small.gguf"),
        "antiexpert": "some/hub-id",
    }
    for wrong, kind in (("./bgi", "folder"), ("./big.gguf", "file")):
        with pytest.raises(
            RecipeError, match=f"base: there is no {kind} .*Relative paths start from the recipe's folder"
        ):
            read(changed(("base: big", f"base: {wrong}"))).sources(tmp_path)
    with pytest.raises(RecipeError, match=r"base: there is no PEFT adapter at '.*big'.*give it as 'model'"):
        read(changed(("base: big", "base: {adapter: big}"))).sources(tmp_path)


def test_every_key_is_explained() -> None:
    keys = list(recipe_keys(LogitRecipe))
    assert {"members:", "  adapter:", "formula:", "preset:", "  kind:", "output:"} <= {key for key, _, _ in keys}
    assert all(description for _, _, description in keys)
