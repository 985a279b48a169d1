"""Weights added, single models chosen, answers put into prompts: small cases worked out by hand."""

import pytest
import torch

from lmcompose.errors import ConfigurationError, DataError
from lmcompose.experiments.ablations.held_out import in_tokens_of
from lmcompose.experiments.ablations.pipeline import answers, prompt_of, with_answer
from lmcompose.experiments.ablations.routing import oracle, product_bound
from lmcompose.experiments.ablations.weights import averaged, check_same_shapes, task_arithmetic
from lmcompose.loading import Member, plan_member
from lmcompose.training.encoding import Example, encode
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import DataSource
from tests.tiny import EOS_ID, tiny_model, tiny_tokenizer
from tests.tokenizers import family


def state(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32), "steps": torch.tensor(3)}


def test_the_average_of_weights() -> None:
    mean = averaged([state(1, 2), state(3, 6)], [0.75, 0.25])
    assert mean["w"].tolist() == [1.5, 3.0]
    assert mean["steps"].item() == 3
    half = averaged([{"w": torch.ones(2, dtype=torch.bfloat16)}, {"w": torch.zeros(2)}], [0.5, 0.5])
    assert half["w"].dtype == torch.bfloat16
    with pytest.raises(ConfigurationError, match="add up to 1"):
        averaged([state(1), state(2)], [0.5, 0.4])


def test_what_was_learned_is_added_and_a_scale_of_nothing_adds_nothing() -> None:
    anchor, tuned, before = state(1, 1), state(5, 2), state(4, 4)
    assert task_arithmetic(anchor, [(tuned, before)])["w"].tolist() == [2, -1]
    assert task_arithmetic(anchor, [(tuned, before)], 0.5)["w"].tolist() == [1.5, 0]
    assert task_arithmetic(anchor, [(tuned, before), (before, tuned)])["w"].tolist() == [1, 1]
    assert task_arithmetic(before, [(tuned, before)])["w"].tolist() == tuned["w"].tolist()
    assert anchor["w"].tolist() == [1, 1], "the anchor's own weights stay"


def test_shapes_that_differ_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"w is \[2\] in m_B and \[3\] in m_A"):
        check_same_shapes({"m_B": state(1, 2), "m_A": state(1, 2, 3)})
    with pytest.raises(ConfigurationError, match=r"extra is missing in m_B and \[1\] in m_A"):
        check_same_shapes({"m_B": state(1), "m_A": {**state(1), "extra": torch.zeros(1)}})
    with pytest.raises(ConfigurationError, match="the model before"):
        task_arithmetic(state(1), [(state(1), state(1, 2))])


def test_an_oracle_takes_the_better_model_of_each_document() -> None:
    assert oracle([[1, 5, 2], [3, 4, 2]]) == [1, 4, 2]
    for wrong in ([], [[1, 2], [1]]):
        with pytest.raises(ConfigurationError):
            oracle(wrong)


def test_a_chain_of_single_models_is_right_as_often_as_all_of_them() -> None:
    assert product_bound([0.9, 0.5]) == pytest.approx(0.45)
    assert product_bound([0.7]) == 0.7
    assert product_bound([1, 0, 0.3]) == 0
    for wrong in ([], [1.2], [-0.1, 0.5]):
        with pytest.raises(ConfigurationError):
            product_bound(wrong)


def example(prompt: str, completion: str, tokenizer) -> Example:
    source = DataSource(path="x.jsonl", kind="prompt_completion")
    (one,) = encode({"prompt": prompt, "completion": completion}, "here", source, tokenizer, 64)
    return one


def test_an_answer_goes_into_the_prompt_and_the_same_tokens_are_asked_for() -> None:
    tokenizer = tiny_tokenizer()
    before = example("1 + 2 =", "3", tokenizer)
    assert prompt_of(before, tokenizer) == "1 + 2 ="
    after = with_answer(before, "w7", "system : {answer} . {prompt}", tokenizer)
    assert tokenizer.decode(after.input_ids) == "system : w7 . 1 + 2 = 3 </s>"
    for one in (before, after):
        assert one.labels[one.labels != IGNORED].tolist() == [*tokenizer("3")["input_ids"], EOS_ID]
    odd = with_answer(before, "{prompt}", "{answer} {prompt}", tokenizer)
    assert len(odd.input_ids) == len(before.input_ids) + 1, "places in an answer are no places"


def test_an_answer_is_cut_where_positions_end() -> None:
    tokenizer = tiny_tokenizer()
    before = example("1 + 2 =", "3", tokenizer)
    cut = with_answer(before, "w1 w2 w3 w4", "{answer} {prompt}", tokenizer, limit=8)
    assert tokenizer.decode(cut.input_ids) == "w1 w2 1 + 2 = 3 </s>"
    with pytest.raises(DataError, match="positions for 5"):
        with_answer(before, "w1 w2", "{answer} {prompt}", tokenizer, limit=5)


def test_answers_in_a_batch_are_those_that_each_prompt_gets_by_itself() -> None:
    model, tokenizer = tiny_model("llama", seed=1), tiny_tokenizer()
    member = Member(model, tokenizer, plan_member((model, tokenizer)))
    prompts = ["w1 w2 w3 w4 w5", "w6", "w7 w8 w9"]
    together = answers(member, prompts, 5, rows_at_once=3)
    for prompt, answer in zip(prompts, together, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        plain = model.generate(ids, max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(ids))
        assert answer == tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True)
    assert len(set(together)) > 1


def test_a_prompt_that_leaves_no_position_is_refused() -> None:
    model, tokenizer = tiny_model("gpt2", max_position_embeddings=8), tiny_tokenizer()
    member = Member(model, tokenizer, plan_member((model, tokenizer)))
    assert len(answers(member, ["w1 w2 w3 w4 w5 w6"], 9)[0].split()) <= 2
    with pytest.raises(DataError, match="positions for 8"):
        answers(member, ["w1 " * 8], 9)


def test_a_model_with_tokens_of_its_own_is_not_asked_for_the_prompt() -> None:
    anchor, own = family("gpt2"), family("llama2")
    ((got,),) = in_tokens_of(own, [[example("Translate: fox ->", " renard rouge", anchor)]], anchor)
    learned = got.labels[got.labels != IGNORED].tolist()
    assert learned[-1] == own.eos_token_id
    assert own.decode(learned[:-1]).strip() == "renard rouge"
    ((back,),) = in_tokens_of(anchor, [[example("Translate: fox ->", " renard rouge", own)]], own)
    learned = back.labels[back.labels != IGNORED].tolist()
    assert anchor.decode(learned[:-1]).strip() == "renard rouge"


def test_a_conversation_is_asked_for_where_the_assistant_speaks() -> None:
    tokenizer = tiny_tokenizer()
    source = DataSource(path="x.jsonl", kind="chat")
    turns = [("user", "w1"), ("assistant", "w2 w3"), ("user", "w4"), ("assistant", "w5")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (one,) = encode({"messages": messages}, "here", source, tokenizer, 64)
    ((same,),) = in_tokens_of(tokenizer, [[one]], tokenizer)
    learned = same.labels[same.labels != IGNORED].tolist()
    assert tokenizer.decode(learned) == "w2 w3 w5 </s>", "without what ends a turn on the way, which has no text"
