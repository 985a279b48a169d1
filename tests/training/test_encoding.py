"""Labels stand exactly on what is to be learned."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from lmcompose.errors import DataError
from lmcompose.training.encoding import Example, encode
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import DataSource
from tests.tiny import tiny_tokenizer

MARKED = (
    "{% for message in messages %}{{ message['role'] }} : {% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }} </s> {% endgeneration %}"
    "{% else %}{{ message['content'] }} </s> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)
FORGETFUL = (  # shows the last message only, as templates do that drop earlier reasoning
    "{{ messages[-1]['role'] }} : {{ messages[-1]['content'] }} </s>"
)
TALK = [
    {"role": "user", "content": "w1 w2"},
    {"role": "assistant", "content": "w3"},
    {"role": "user", "content": "w4"},
    {"role": "assistant", "content": "w5 w6"},
]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


def encoded(
    tokenizer: PreTrainedTokenizerFast, record: dict[str, Any], max_length: int = 64, **fields: Any
) -> list[Example]:
    source = DataSource.model_validate({"path": "d.jsonl", **fields})
    return list(encode(record, "d.jsonl, line 1", source, tokenizer, max_length))


def words(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[list[str], list[str]]:
    """All tokens, and those that are learned."""
    learned = [int(label) for label in example.labels if label != IGNORED]
    return tokenizer.convert_ids_to_tokens(example.input_ids.tolist()), tokenizer.convert_ids_to_tokens(learned)


def test_text_is_learned_whole_and_ends(tokenizer: PreTrainedTokenizerFast) -> None:
    (example,) = encoded(tokenizer, {"text": "w1 w2"})
    assert words(tokenizer, example) == (["w1", "w2", "</s>"], ["w1", "w2", "</s>"])


def test_only_the_completion_is_learned(tokenizer: PreTrainedTokenizerFast) -> None:
    (example,) = encoded(tokenizer, {"prompt": "1 +", "completion": " 2 </s>"}, kind="prompt_completion")
    assert words(tokenizer, example) == (["1", "+", "2", "</s>"], ["2", "</s>"])


def test_a_prompt_keeps_the_tokens_that_generation_starts_from(tokenizer: PreTrainedTokenizerFast) -> None:
    """ "w" + "12" is the token "w12" together: but a prompt that ends in "w" is generated on as "w"."""
    (example,) = encoded(tokenizer, {"prompt": "w1 w", "completion": "12"}, kind="prompt_completion")
    prompt = tokenizer("w1 w")["input_ids"]
    assert example.input_ids[: len(prompt)].tolist() == prompt
    assert (example.labels[: len(prompt)] == IGNORED).all()
    assert (example.labels[len(prompt) :] != IGNORED).all()


@pytest.mark.parametrize("template", [None, MARKED], ids=["told by prefixes", "told by generation marks"])
def test_only_the_assistant_is_learned(tokenizer: PreTrainedTokenizerFast, template: str | None) -> None:
    if template is not None:
        tokenizer.chat_template = template
    (example,) = encoded(tokenizer, {"messages": TALK}, kind="chat")
    everything, learned = words(tokenizer, example)
    assert " ".join(everything) == "user : w1 w2 </s> assistant : w3 </s> user : w4 </s> assistant : w5 w6 </s>"
    assert learned == ["w3", "</s>", "w5", "w6", "</s>"]


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = FORGETFUL
    with pytest.raises(DataError, match=r"rewrites earlier turns.*generation"):
        encoded(tokenizer, {"messages": TALK}, kind="chat")


def test_chat_without_a_template_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"no chat template.*prompt_completion"):
        encoded(tokenizer, {"messages": TALK}, kind="chat")


def test_a_template_that_raises_is_named(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('no system please') }}"
    with pytest.raises(DataError, match=r"line 1: the chat template refuses.*no system please"):
        encoded(tokenizer, {"messages": TALK}, kind="chat")


def test_long_text_is_split_and_loses_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    text = " ".join(f"w{i}" for i in range(10))
    pieces = encoded(tokenizer, {"text": text}, max_length=4)
    assert [len(piece.input_ids) for piece in pieces] == [4, 4, 3]
    joined = [token for piece in pieces for token in words(tokenizer, piece)[0]]
    assert joined == [*text.split(), "</s>"]


def test_a_last_piece_of_one_token_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [len(p.input_ids) for p in encoded(tokenizer, {"text": "w1 w2 w3 w4"}, max_length=4)] == [4]


@pytest.mark.parametrize(("policy", "count"), [("truncate", 1), ("skip", 0)])
def test_long_answers_are_cut_or_skipped(tokenizer: PreTrainedTokenizerFast, policy: str, count: int) -> None:
    record = {"prompt": "1 +", "completion": "2 3 4 5"}
    examples = encoded(tokenizer, record, max_length=4, kind="prompt_completion", long_examples=policy)
    assert len(examples) == count
    assert all(words(tokenizer, example)[1] == ["2", "3"] for example in examples)


def test_a_long_example_can_be_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match=r"line 1: 4 tokens are more than max_length 3"):
        encoded(tokenizer, {"text": "w1 w2 w3"}, max_length=3, long_examples="error")


def test_nothing_left_to_learn_after_the_cut_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        DataError, match="line 1: its 6 tokens are cut to max_length 3, and nothing of its answer is left"
    ):
        encoded(tokenizer, {"prompt": "1 + 2 +", "completion": "3"}, max_length=3, kind="prompt_completion")


@pytest.mark.parametrize(
    ("record", "kind"),
    [({"text": ""}, "text"), ({"prompt": "1 +", "completion": ""}, "prompt_completion")],
)
def test_labels_that_are_all_masked_are_an_error(
    tokenizer: PreTrainedTokenizerFast, record: dict[str, str], kind: str
) -> None:
    with pytest.raises(DataError, match="line 1: there is nothing to learn"):
        encoded(tokenizer, record, kind=kind)
