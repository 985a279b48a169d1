"""The task in words: what sentences mean, where operands stand, and that members and compositions can be made of it."""

import dataclasses
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from lmcompose.errors import ConfigurationError
from lmcompose.experiments.kv_arithmetic import ablations, evaluate, members
from lmcompose.experiments.kv_arithmetic.natural import LENGTHS, SENTENCES, WORDS, NaturalTask, segments
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES, NaturalProfile
from lmcompose.experiments.kv_arithmetic.run import member_stamp
from lmcompose.experiments.kv_arithmetic.task import EQUALS, FILLER, FIRST_KEY, MINUS, PLUS, Kind, Task
from lmcompose.experiments.kv_arithmetic.tuned import tune
from tests.experiments.kv_arithmetic.test_run import MEMBER, TINY

TASK = NaturalTask(keys=60, operands=3)
NATURAL = NaturalProfile(**vars(dataclasses.replace(TINY, operands=3)))


def spoken(task: Task, ids: np.ndarray) -> str:
    words = task.tokenizer().convert_ids_to_tokens(ids.tolist())
    return " ".join(word for word in words if word not in ("_", "<s>", "</s>"))


def understood(sentence: str) -> int:
    """The value of a sentence over plain numbers, by the meaning of its words."""
    for told, python in (
        ("added to the sum of", "+ ( + "), ("added to the difference of", "+ ( - "),
        ("reduced by the sum of", "- ( + "), ("reduced by the difference of", "- ( - "),
    ):  # fmt: skip
        if told in sentence:
            first, rest = sentence.removeprefix("What is the value when ").removesuffix(" ?").split(f" is {told} ")
            outer, inner = python[0], python[4]
            second, third = rest.split(" and ")
            return int(eval(f"{first} {outer} ({second} {inner} {third})"))
    for told, sign in (("sum", "+"), ("difference", "-")):
        if sentence.startswith(f"What is the {told} of "):
            rest = sentence.removeprefix(f"What is the {told} of ").removesuffix(" ?").replace(" and ", f" {sign} ")
            return int(eval(rest.replace("increased by", "+").replace("decreased by", "-")))
    for told, sign in (("is added to", "+"), ("is reduced by", "-"), (", add", "+"), (", subtract", "-")):
        sentence = sentence.replace(told, sign)
    digits = [word for word in sentence.split() if word in "+-" or word.isdigit()]
    return int(eval(" ".join(digits)))


def test_every_sentence_means_the_expression() -> None:
    seen = set()
    for count in (1, 2, 3):
        for sentence in range(SENTENCES):
            for operators in itertools.product((PLUS, MINUS), repeat=count - 1):
                numbers = [50, 7, 3][:count]
                parts = segments(sentence, operators)
                assert len(parts) == count + 1
                assert all(len(part.split()) <= LENGTHS[place] for place, part in enumerate(parts))
                said = parts[0] + "".join(f" {number} {part}" for number, part in zip(numbers, parts[1:], strict=True))
                expected = numbers[0] + sum(
                    number if operator == PLUS else -number
                    for number, operator in zip(numbers[1:], operators, strict=True)
                )
                assert understood(said) == expected, said
                seen.add(said)
    assert len(seen) == 3 + 6 + 12
    assert "What is the value when 50 is added to the difference of 7 and 3 ?" in seen


def test_prompts_are_sentences_and_answers_are_the_other_forms_own() -> None:
    drawn = TASK.sample(np.random.default_rng(0), 60, 3, TASK.split[0])
    signs = Task(TASK.keys, TASK.operands)
    assert set(drawn.kinds) == {0, 1, 2}
    places = set()
    for kind in Kind:
        ids, prompt = TASK.encode(drawn, kind)
        theirs, their_prompt = signs.encode(drawn, kind)
        assert np.array_equal(ids[:, prompt:], theirs[:, their_prompt:])
        assert ids[:, prompt:].max() < FIRST_KEY, "an answer has no word of a sentence"
        for row, (key, sign) in enumerate(zip(drawn.keys, drawn.operators, strict=True)):
            parts = segments(int(drawn.kinds[row]), sign[1:])
            if kind is not Kind.NUM_MATH:
                said = parts[0] + "".join(f" <k{key}> {part}" for key, part in zip(key, parts[1:], strict=True))
                assert spoken(TASK, ids[row, :prompt]) == f"{said} {'=' if kind is Kind.KV_MATH else '->'}"
                is_key = (ids[row] >= FIRST_KEY) & (ids[row] < FIRST_KEY + TASK.keys)
                places.add(tuple(np.flatnonzero(is_key)))
    assert len(places) == 1, "operands stand in the same places in all sentences"


def test_the_drawn_expressions_are_those_of_the_task_with_signs() -> None:
    """But for the kinds of sentence, which are drawn last."""
    one, other = (task.sample(np.random.default_rng(5), 9, 2, task.split[0]) for task in (TASK, Task(60, 3)))
    assert np.array_equal(one.keys, other.keys)
    assert np.array_equal(one.operators, other.operators)
    assert TASK.vocab_size == other.keys.dtype.type(Task(60, 3).vocab_size) + len(WORDS)
    assert len(one.rows(np.array([3, 1])).kinds) == 2


def test_what_has_no_sentence_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="up to 3 operands"):
        NaturalTask(60, operands=4)
    with pytest.raises(ConfigurationError, match="no multiplication"):
        NaturalTask(60, multiplication=True)


def test_an_anchor_learns_the_words_and_meets_no_key() -> None:
    profile = dataclasses.replace(MEMBER, mix=(1, 1, 1), echo=0.5, unknown=0.5)
    model, _ = members.train_anchor(TASK, (profile,), 0)
    words, head = model.transformer.wte.weight, model.lm_head.weight
    assert len(words) == len(head) == TASK.vocab_size
    assert words[FIRST_KEY : FIRST_KEY + TASK.keys].abs().max() == 0
    assert words[FIRST_KEY + TASK.keys :].norm(dim=1).min() > 0
    assert head[FIRST_KEY:].abs().max() == 0, "no answer has a word of a sentence"
    assert words[FILLER].abs().max() == 0
    # The finished model reads a prompt as the one in training did, which had no keys between.
    drawn = TASK.sample(np.random.default_rng(0), 4, 3)
    ids = torch.from_numpy(TASK.encode(drawn, Kind.NUM_MATH)[0])
    compact = members.without_keys(ids, TASK)
    assert FIRST_KEY <= compact.max() < FIRST_KEY + len(WORDS)
    rows = torch.cat([words[:FIRST_KEY], words[FIRST_KEY + TASK.keys :]])
    assert torch.equal(words[ids], rows[compact])


def test_ablations_run_in_words_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "tiny-natural", NATURAL)
    console = Console(file=io.StringIO())
    result = ablations.run("tiny-natural", ["lora"], [], seeds=(0,), folder=tmp_path, console=console)
    assert result["recipe"]["profile"]["form"] == "natural"
    assert result["ladder"] == ["augmenting", "anchor", "composition", "lora"]
    assert 0 <= result["routing"]["product"]["mean"] <= 1


def test_profiles_in_words_have_stamps_of_their_own() -> None:
    signs, words = PROFILES["paper"], PROFILES["paper-natural"]
    assert {name: value for name, value in vars(words).items() if name != "form"} == vars(signs)
    assert isinstance(words.task(3), NaturalTask)
    assert type(signs.task(3)) is Task
    for role in ("anchor", "augmenting"):
        stamps = {member_stamp(role, profile, profile.task(0), 0, None) for profile in (signs, words)}
        assert len(stamps) == 2


def test_a_key_stands_where_the_probe_looks() -> None:
    """Of both forms: the state of layer 0 there is the key's row, plus that of its position."""
    for task in (Task(60), NaturalTask(60)):
        model = members.with_full_vocabulary(members.build_augmenting(task, MEMBER, 0), task)
        torch.nn.init.normal_(model.transformer.wte.weight)
        keys = np.array([7, 3, 59])
        states = evaluate.key_states(model, task, keys, 0)
        rows = model.transformer.wte.weight[FIRST_KEY + torch.from_numpy(keys)]
        places = states - rows
        torch.testing.assert_close(places, places[:1].expand_as(places))
        assert any(torch.allclose(places[0], place, atol=1e-5) for place in model.transformer.wpe.weight)


def test_keys_are_told_apart_and_words_are_left_alone() -> None:
    anchor = members.with_full_vocabulary(members.build_anchor(TASK, MEMBER, 0), TASK)
    model, _ = tune(anchor, TASK, dataclasses.replace(NATURAL.composition, steps=1), "lora", MEMBER, 500, 0)
    before, after = anchor.transformer.wte.weight, model.transformer.wte.weight
    assert torch.equal(before[FIRST_KEY + TASK.keys :], after[FIRST_KEY + TASK.keys :])
    assert after[FIRST_KEY : FIRST_KEY + TASK.keys].norm(dim=1).min() > 0
    assert EQUALS < FIRST_KEY
