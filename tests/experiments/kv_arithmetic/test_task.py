"""The three tasks: the expressions, their results, their encoding."""

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.experiments.kv_arithmetic.task import (
    EOS,
    FIRST_KEY,
    MINUS,
    PLUS,
    TIMES,
    Expressions,
    Kind,
    Task,
)


def text_of(task: Task, row: np.ndarray) -> str:
    return " ".join(task.tokenizer().convert_ids_to_tokens([int(token) for token in row]))


def one(values: list[int], operators: list[int], keys: list[int] | None = None) -> Expressions:
    return Expressions(np.array([keys or [-1] * len(values)]), np.array([values]), np.array([operators]))


def test_values_are_unique_and_cover_the_range() -> None:
    task = Task(keys=500, seed=3)
    assert sorted(task.values) == list(range(1, 501))
    assert not np.array_equal(task.values, Task(keys=500, seed=4).values)
    assert np.array_equal(task.values, Task(keys=500, seed=3).values)


def test_a_fifth_of_the_keys_is_held_in_and_nothing_is_both() -> None:
    held_in, held_out = Task(keys=500).split
    assert len(held_in) == 100
    assert sorted([*held_in, *held_out]) == list(range(500))


@pytest.mark.parametrize(
    ("values", "operators", "expected"),
    [
        ([10, 22, 24], [PLUS, PLUS, MINUS], 8),  # the paper's own example
        ([7], [PLUS], 7),
        ([5, 9], [PLUS, MINUS], -4),
        ([2, 3, 4], [PLUS, PLUS, TIMES], 14),
        ([2, 3, 4], [PLUS, TIMES, PLUS], 10),
        ([2, 3, 4], [PLUS, TIMES, TIMES], 24),
        ([30, 3, 4, 5], [PLUS, MINUS, TIMES, PLUS], 23),
    ],
)
def test_results(values: list[int], operators: list[int], expected: int) -> None:
    assert one(values, operators).results().tolist() == [expected]


def test_the_papers_example_in_all_three_tasks() -> None:
    task = Task(keys=99)
    expression = one([10, 22, 24], [PLUS, PLUS, MINUS], keys=[5, 6, 7])
    expected = {
        Kind.KV_SUBS: "<s> <k5> _ + <k6> _ - <k7> _ -> 0 1 + 2 2 - 4 2 </s>",
        Kind.NUM_MATH: "<s> 0 1 + 2 2 - 4 2 = 8 0 0 </s>",
        Kind.KV_MATH: "<s> <k5> _ + <k6> _ - <k7> _ = 8 0 0 </s>",
    }
    for kind, text in expected.items():
        ids, prompt = task.encode(expression, kind)
        assert text_of(task, ids[0]) == text
        assert text_of(task, ids[0, :prompt])[-1] in "=>"
        assert task.tokenizer()(text)["input_ids"] == ids[0].tolist()


def test_numbers_read_back() -> None:
    task = Task(keys=25_000)
    numbers = np.array([0, 1, 10, 24_999, 75_000])
    assert [task.number(row) for row in task.digits(numbers, task.answer_width)] == numbers.tolist()


@pytest.mark.parametrize("multiplication", [False, True])
def test_samples_have_no_negative_result_and_only_the_pools_keys(multiplication: bool) -> None:
    task = Task(keys=200, operands=3, multiplication=multiplication)
    held_in, _ = task.split
    drawn = task.sample(np.random.default_rng(0), 400, 3, held_in)
    assert len(drawn) == 400
    assert drawn.results().min() >= 0
    assert set(drawn.keys.flatten()) <= set(held_in)
    assert np.array_equal(drawn.values, task.values[drawn.keys])
    assert set(np.unique(drawn.operators[:, 1:])) == ({PLUS, MINUS, TIMES} if multiplication else {PLUS, MINUS})
    ids, _ = task.encode(drawn, Kind.KV_MATH)
    assert (ids[:, -1] == EOS).all()
    assert ids.max() < task.vocab_size == len(task.tokenizer())


def test_plain_numbers_have_no_keys() -> None:
    task = Task(keys=200)
    drawn = task.sample(np.random.default_rng(0), 50, 2)
    assert (drawn.keys == -1).all()
    assert task.encode(drawn, Kind.NUM_MATH)[0].max() < FIRST_KEY


def test_operands_can_be_mixed_and_digits_sparse() -> None:
    task = Task(keys=200)
    mixed = task.sample(np.random.default_rng(0), 500, 3, task.split[0], all_keys=0.5, no_key=0.2)
    shares = [((mixed.keys >= 0).sum(axis=1) == count).mean() for count in (0, 1, 2, 3)]
    assert shares == pytest.approx([0.2, 0.3, 0.0, 0.5], abs=0.06)
    ids, _ = task.encode(mixed, Kind.KV_MATH)
    first = ids[:, 1]
    assert ((first >= FIRST_KEY) == (mixed.keys[:, 0] >= 0)).all()
    dense, sparse = (task.sample(np.random.default_rng(0), 500, 3, sparse=share) for share in (0.0, 1.0))
    zeros = [
        (task.digits(drawn.values, task.width) == task.digits(np.zeros(1, int), 1)).mean() for drawn in (dense, sparse)
    ]
    assert zeros[1] > zeros[0] + 0.25


@pytest.mark.parametrize(
    "arguments", [{"keys": 2}, {"keys": 100, "operands": 0}, {"keys": 25_000, "operands": 6, "multiplication": True}]
)
def test_impossible_tasks_are_refused(arguments: dict) -> None:
    with pytest.raises(ConfigurationError):
        Task(**arguments)
