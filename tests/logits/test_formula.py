"""What formulas mean, that their text reads back, and that every mistake is pointed at."""

import random

import numpy
import pytest
import torch

from lmcompose.errors import ConfigurationError
from lmcompose.logits.formula import Formula, check_not_cancelled, parameter, parse, term
from lmcompose.logits.parsing import MAX_DEPTH, MAX_TOKENS

MEMBERS = ("base", "expert", "antiexpert")


@pytest.mark.parametrize(
    ("text", "parameters", "values", "expected"),
    [
        ("base + 1.0 * (expert - antiexpert)", (), {}, (1, 1, -1)),
        ("base + alpha * (expert - antiexpert)", ("alpha",), {"alpha": 0.3}, (1, 0.3, -0.3)),
        ("(1 + a) * base - a * expert - antiexpert / 4", ("a",), {"a": 0.5}, (1.5, -0.5, -0.25)),
        ("base + g * (expert - base) + 0 * antiexpert", ("g",), {"g": 1.5}, (-0.5, 1.5, 0)),
        ("-(base - expert) / 2 * (3 - 1) + antiexpert", (), {}, (-1, 1, 1)),
        ("base - expert - antiexpert", (), {}, (1, -1, -1)),
        ("base - (expert - antiexpert)", (), {}, (1, -1, 1)),
        ("8 / 4 / 2 * base + expert * 2e-1 + .5 * --antiexpert", (), {}, (1, 0.2, 0.5)),
        ("\n  base\t+expert\n+ antiexpert ", (), {}, (1, 1, 1)),
        ("x / (y - 1) * base + expert + antiexpert", ("x", "y"), {"x": 3, "y": 2.5}, (2, 1, 1)),
    ],
)
def test_weights(
    text: str, parameters: tuple[str, ...], values: dict[str, float], expected: tuple[float, float, float]
) -> None:
    formula = parse(text, MEMBERS, parameters)
    assert formula.coefficients(values) == dict(zip(MEMBERS, expected, strict=True))
    assert formula.parameters == parameters


def test_members_in_the_order_of_appearance() -> None:
    assert parse("expert - base + expert", ["base", "expert"]).members == ("expert", "base")


def test_opposite_weights_are_exact_opposites() -> None:
    formula = parse("base + (1 / 3 + alpha * 7) * (expert - antiexpert)", MEMBERS, ["alpha"])
    for alpha in (0.1, 1 / 7, 1e-9, -2.3):
        weights = formula.coefficients({"alpha": alpha})
        assert weights["expert"] == -weights["antiexpert"]


def test_tensors_give_a_weight_per_row() -> None:
    alpha = torch.tensor([0.1, 0.0, 2.0])[:, None, None]
    weights = parse("(1 + alpha) * base - alpha * expert", ["base", "expert"], ["alpha"]).coefficients({"alpha": alpha})
    assert weights["base"].shape == weights["expert"].shape == (3, 1, 1)
    assert weights["base"].dtype == torch.float64
    assert torch.equal(weights["expert"], -alpha.double())
    torch.testing.assert_close(weights["base"] + weights["expert"], torch.ones(3, 1, 1).double(), rtol=0, atol=1e-15)


# ---- Python -----------------------------------------------------------------------------------------------------


def test_python_and_text_give_equal_formulas() -> None:
    base, expert, antiexpert, alpha = term("base"), term("expert"), term("antiexpert"), parameter("alpha")
    assert base + 1.0 * (expert - antiexpert) == parse("base + 1 * (expert - antiexpert)", MEMBERS)
    assert base + alpha * (expert - antiexpert) == parse("base + alpha*(expert - antiexpert)", MEMBERS, ["alpha"])
    assert (1 + alpha) * base - alpha * expert == parse("(1 + alpha) * base - alpha * expert", MEMBERS[:2], ["alpha"])
    assert -base / (2 - alpha) - -0.5 * expert == parse("-base/(2 - alpha) - -0.5 * expert", MEMBERS[:2], ["alpha"])
    assert 1 / alpha * base == parse("1 / alpha * base", ["base"], ["alpha"])
    assert sum([base, expert]) == parse("base + expert", MEMBERS[:2])
    assert {base + expert, term("base") + term("expert")} == {base + expert}
    assert base + expert != expert + base
    assert repr(base * 2) == "Formula('base * 2')"


def random_formula(draw: random.Random, depth: int, with_members: bool) -> Formula:
    if depth == 0:
        if with_members:
            return term(draw.choice(MEMBERS))
        number = draw.choice([0.5, 1, 2, 3.25, -1.5, 1e-7, 1e22])
        return parameter(draw.choice(["alpha", "beta"])) if draw.random() < 0.5 else 0 * parameter("beta") + number
    left = random_formula(draw, draw.randrange(depth), with_members)
    scalar = random_formula(draw, draw.randrange(depth), False)
    operations = {
        "+": lambda: left + random_formula(draw, draw.randrange(depth), with_members),
        "-": lambda: left - random_formula(draw, draw.randrange(depth), with_members),
        "*": lambda: scalar * left,
        "right *": lambda: left * scalar,
        "/": lambda: left / draw.choice([2, -4, parameter("alpha")]),
        "minus": lambda: -left,
    }
    return operations[draw.choice(list(operations))]()


@pytest.mark.parametrize("seed", range(200))
def test_text_reads_back_and_means_what_python_says(seed: int) -> None:
    formula = random_formula(random.Random(seed), 4, True)
    text = str(formula)
    assert parse(text, formula.members, formula.parameters) == formula
    values = {name: {"alpha": 0.7, "beta": -1.25}[name] for name in formula.parameters}
    units = {name: numpy.eye(3)[i] for i, name in enumerate(MEMBERS)}
    expected = eval(text, {}, {**units, **values})  # Python's own reading of the same text
    weights = formula.coefficients(values)
    given = [weights.get(name, 0.0) for name in MEMBERS]
    numpy.testing.assert_allclose(given, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: term("base") + 1, "base \\+ 1: a number is added to a member"),
        (lambda: 2.5 - term("base"), "2.5 - base: a number is added"),
        (lambda: parameter("alpha") + term("base"), "alpha \\+ base: a number is added"),
        (lambda: term("base") + 0.0, "a number is added"),
        (lambda: term("base") * term("expert"), "product of members"),
        (lambda: 1 / term("base"), "divides by a member"),
        (lambda: term("base") / term("base"), "divides by a member"),
        (lambda: term("base") / 0, "divides by zero"),
        (lambda: term("base") * float("nan"), "cannot hold nan"),
        (lambda: term("base") * float("inf"), "cannot hold inf"),
        (lambda: term("my-model"), "'my-model' cannot be the name of a member"),
        (lambda: term("2nd"), "'2nd' cannot be"),
        (lambda: parameter(""), "'' cannot be the name of a parameter"),
        (lambda: parse("a b", ["a b"]), "'a b' cannot be"),
        (lambda: parse(None, ["base"]), "is text such as"),  # type: ignore[arg-type]
    ],
)
def test_python_mistakes(build: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("other", [True, "expert", None, [1]])
def test_other_types_are_no_part_of_a_formula(other: object) -> None:
    with pytest.raises(TypeError):
        term("base") - other  # type: ignore[operator]
    with pytest.raises(TypeError):
        other + term("base")  # type: ignore[operator]


# ---- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "caret", "message"),
    [
        ("base + expret", 7, "Unknown name 'expret'. .*Did you mean 'expert'"),
        ("base + alpah * expert", 7, "parameters are alpha.*Did you mean 'alpha'"),
        ("(base + expert", 0, "never closed"),
        ("base + (2 * (expert)", 7, "never closed"),
        ("base + expert)", 13, "never opened"),
        ("base * expert", 5, "product of members"),
        ("2 * (base - expert) * base", 20, "product of members"),
        ("base / expert", 5, "divides by a member"),
        ("base + 1", 5, "a number is added"),
        ("alpha - base", 6, "a number is added"),
        ("base / 0", 5, "divides by zero"),
        ("base / (2 - 4 / 2)", 5, "divides by zero"),
        ("", 0, "formula is empty"),
        ("  \n ", 0, "formula is empty"),
        ("alpha + 1", 0, "has no member in it. The members are base, expert"),
        ("base ** 2", 5, r"no powers, so no '\*\*'. Write the power of a weight as a product, such as alpha \* alpha"),
        ("base + alpha ** 2 * expert", 13, r"no powers, so no '\*\*'"),
        ("base + 2 ** 2 * (base - expert)", 9, r"no powers, so no '\*\*'"),
        ("base + (alpha ** 2) * expert", 14, r"no powers, so no '\*\*'"),
        ("base + (1 + alpha) ** 2 * expert", 19, r"no powers, so no '\*\*'"),
        ("base * expert ** 2", 14, r"no powers, so no '\*\*'"),
        ("base + ** 2", 7, r"no powers, so no '\*\*'"),
        ("base + alpha ^ 2 * expert", 13, r"no powers, so no '\^'"),
        ("base + 2 % 2 * expert", 9, "has no '%'"),
        ("base // 2", 5, "has no '//'. Write /"),
        ("exp(base)", 0, "Nothing can be called"),
        ("alpha(base)", 0, "write 'alpha \\* \\('"),
        ("base.logits", 4, "no attributes"),
        ("base[0]", 4, "has no '\\['"),
        ("base, expert", 4, "has no ','"),
        ("base = expert", 5, "has no '='"),
        ("base if expert else 0", 5, "operator is missing before 'if'"),
        ("base + 2 expert", 9, "operator is missing before 'expert'"),
        ("2base", 1, "operator is missing before 'base'"),
        ("2(base)", 1, "operator is missing before '\\('"),
        ("base 'expert'", 5, "has no \"?'"),
        ("base + ", 6, "ends where a member or a number must stand"),
        ("base + * expert", 7, "There is a '\\*' where a member"),
        ("+base", 0, "There is a '\\+' where a member"),
        ("base + ()", 8, "There is a '\\)' where"),
        ("base + )", 7, "never opened"),
        ("1e999 * base", 0, "too large"),
        ("base\n + 1\n", 6, "a number is added"),
        ("bäse + base", 0, "Unknown name 'bäse'"),
        ("-" * (MAX_DEPTH + 5) + "base", MAX_DEPTH, "nested more than"),
        ("(" * 100_000, 0, "more than"),
        ("base" + " + base" * MAX_TOKENS, 0, "more than"),
    ],
)
def test_text_mistakes_are_pointed_at(text: str, caret: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        parse(text, ["base", "expert"], ["alpha"])
    _, shown, pointer = str(error.value).split("\n")
    assert shown == "  " + text.replace("\n", " ")
    assert pointer == "  " + " " * caret + "^"


def test_members_and_parameters_are_all_used_and_apart() -> None:
    with pytest.raises(ConfigurationError, match="member 'antiexpert' is given but the formula 'base \\+ expert'"):
        parse("base + expert", MEMBERS)
    with pytest.raises(ConfigurationError, match="parameter 'alpha' is given but"):
        parse("base + expert", MEMBERS[:2], ["alpha"])
    with pytest.raises(ConfigurationError, match="'base' is both a member and a parameter"):
        parse("base + expert", MEMBERS[:2], ["base"])


# ---- values -----------------------------------------------------------------------------------------------------

TUNED = parse("base + alpha * (expert - antiexpert)", MEMBERS, ["alpha"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "parameter 'alpha' has no value"),
        ({"alpha": 1.0, "beta": 2.0}, "no parameter 'beta'; it has alpha"),
        ({"alpah": 1.0}, "no parameter 'alpah'.*Did you mean 'alpha'"),
        ({"alpha": "1.0"}, "alpha = '1.0' is no finite number"),
        ({"alpha": True}, "alpha = True is no finite number"),
        ({"alpha": None}, "alpha = None"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"alpha": [1.0]}, "alpha = \\[1.0\\]"),
        ({"alpha": torch.tensor([True])}, "alpha is a tensor of torch.bool"),
    ],
)
def test_values_that_cannot_be(values: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TUNED.coefficients(values)


def test_any_real_number_is_a_value() -> None:
    for one in (1, 1.0, numpy.float32(1), numpy.int64(1)):
        assert TUNED.coefficients({"alpha": one}) == {"base": 1.0, "expert": 1.0, "antiexpert": -1.0}


def test_division_by_a_parameter() -> None:
    formula = parse("base / (1 - alpha)", ["base"], ["alpha"])
    assert formula.coefficients({"alpha": 0.5}) == {"base": 2.0}
    with pytest.raises(ConfigurationError, match="divides by '1 - alpha', which is 0"):
        formula.coefficients({"alpha": 1.0})
    with pytest.raises(ConfigurationError, match="the weight inf"):
        parse("1e300 * base * 1e300", ["base"]).coefficients()


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("base - base", {}, "'base - base' the weights cancel"),
        ("0 * base", {}, "weights cancel"),
        ("alpha * base", {"alpha": 0}, "with alpha = 0 the weights cancel.*base: 0"),
        ("-base", {}, "no weight is positive.*base: -1"),
        ("base - 2 * base + alpha * expert", {"alpha": 0}, "no weight is positive"),
        ("alpha * base", {"alpha": torch.tensor([1.0, 0.0])}, "weights cancel"),
        ("alpha * base", {"alpha": torch.tensor([1.0, -1.0])}, "no weight is positive"),
    ],
)
def test_weights_that_leave_nothing_to_choose_by(text: str, values: dict, message: str) -> None:
    members = [name for name in ("base", "expert") if name in text]
    with pytest.raises(ConfigurationError, match=message):
        check_not_cancelled(parse(text, members, list(values)), values)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -3.0, torch.tensor([0.0, 5.0])])
def test_weights_that_leave_something(alpha: float | torch.Tensor) -> None:
    check_not_cancelled(TUNED, {"alpha": alpha})
    check_not_cancelled(parse("expert - antiexpert", MEMBERS[1:]))
