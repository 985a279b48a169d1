"""One prompt as each member reads it: own tokenizer, own template, own system prompt, own context."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError, DataError
from lmcompose.logits.prompts import prepare_prompts
from tests.tiny import tiny_tokenizer

QUESTION = [{"role": "user", "content": "w1 w2"}]
TURNS = [
    {"role": "system", "content": "w70"},
    {"role": "user", "content": "w1"},
    {"role": "assistant", "content": "w2"},
    {"role": "user", "content": "w3"},
]
PLAIN = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def tokenizers(*roles: str, **templates: str | None) -> dict[str, PreTrainedTokenizerFast]:
    made = {}
    for role in roles:
        made[role] = tiny_tokenizer()
        if role in templates:
            made[role].chat_template = templates[role]
    return made


def texts(inputs: dict[str, torch.Tensor], tokenizer: Any) -> list[list[str]]:
    """What each member reads, row by row: the leader first."""
    ids, mask = inputs["input_ids"][:, None], inputs["attention_mask"][:, None]
    found = []
    for part, kept in ((ids, mask), (inputs.get("member_input_ids"), inputs.get("member_attention_mask"))):
        for member in range(part.shape[1] if part is not None else 0):
            rows = zip(part[:, member], kept[:, member], strict=True)
            found.append([tokenizer.decode(row[keep.bool()]) for row, keep in rows])
    return found


def test_all_alike() -> None:
    inputs = prepare_prompts(tokenizers("base", "expert"), ["w1 w2 w3", "w4"])
    assert inputs.keys() == {"input_ids", "attention_mask"}
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert texts(inputs, tiny_tokenizer()) == [["w1 w2 w3", "w4"]]
    assert inputs["input_ids"][1, 0] == tiny_tokenizer().pad_token_id
    one = prepare_prompts(tokenizers("base"), "w1 w2")
    assert one["input_ids"].shape == (1, 2)


def test_contexts_before_texts() -> None:
    inputs = prepare_prompts(
        tokenizers("base", "expert", "antiexpert"),
        ["w1", "w2 w3"],
        context={"expert": "w50 ", "base": ["w60 ", "w61 w62 "]},
    )
    assert texts(inputs, tiny_tokenizer()) == [["w60 w1", "w61 w62 w2 w3"], ["w50 w1", "w50 w2 w3"], ["w1", "w2 w3"]]
    assert inputs["member_input_ids"].shape == (2, 2, 3)
    assert inputs["member_attention_mask"][:, :, -1].all()


def test_conversations() -> None:
    inputs = prepare_prompts(
        tokenizers("base", "expert", "antiexpert", expert=PLAIN),
        [QUESTION, TURNS],
        context={"antiexpert": "w50"},
        system={"expert": ["w70", "w71"], "antiexpert": "w72"},
    )
    assert texts(inputs, tiny_tokenizer()) == [
        ["user : w1 w2 </s> assistant :",
         "system : w70 </s> user : w1 </s> assistant : w2 </s> user : w3 </s> assistant :"],
        ["w70 w1 w2", "w71 w1 w2 w3"],
        ["system : w72 </s> user : w50 w1 w2 </s> assistant :",
         "system : w72 </s> user : w1 </s> assistant : w2 </s> user : w50 w3 </s> assistant :"],
    ]  # fmt: skip


def test_the_callers_messages_are_left_alone() -> None:
    before = [dict(message) for message in TURNS]
    prepare_prompts(tokenizers("base", "expert"), TURNS, context={"expert": "w50"}, system={"base": "w7"})
    assert before == TURNS


def test_another_template() -> None:
    made = tokenizers("base", "expert", expert=None)
    for template in (PLAIN, "base"):
        got = texts(prepare_prompts(made, QUESTION, templates={"expert": template}), tiny_tokenizer())
        assert got[1:] == ([["w1 w2"]] if template == PLAIN else [])
    with pytest.raises(ConfigurationError, match=r"tokenizer of 'expert' has no chat template.*\(\['base'\]\)"):
        prepare_prompts(made, QUESTION)
    with pytest.raises(ConfigurationError, match="tokenizer of 'expert' has no chat template"):
        prepare_prompts(made, QUESTION, templates={"base": "expert"})
    with pytest.raises(ConfigurationError, match=r"'bse'\} is no template in Jinja.*Did you mean 'base'\?"):
        prepare_prompts(made, QUESTION, templates={"expert": "bse"})


def test_a_member_with_a_vocabulary_of_its_own_reads_its_own_ids() -> None:
    """The same text in other ids; what pads is an id that every model has."""
    other = tiny_tokenizer()
    other.add_tokens(["<extra>"])
    other.pad_token = "<extra>"
    made = {"base": other, "expert": tiny_tokenizer()}
    inputs = prepare_prompts(made, ["<extra> w1", "w1 w2 w3"])
    assert inputs["input_ids"][0].tolist()[1] == 97
    assert int(inputs["member_input_ids"].max()) < 97
    assert inputs["member_input_ids"][0, 0].tolist() == [0, *tiny_tokenizer()("<extra> w1")["input_ids"]]


def test_special_tokens_are_each_tokenizers_own() -> None:
    from tokenizers.processors import TemplateProcessing

    bos = tiny_tokenizer()
    bos._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inputs = prepare_prompts({"base": bos, "expert": tiny_tokenizer()}, "w1")
    assert texts(inputs, tiny_tokenizer()) == [["<s> w1"], ["w1"]]


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ([], {}, DataError, "There is no prompt"),
        (None, {}, DataError, "There is no prompt"),
        (torch.tensor([[1]]), {}, DataError, "There is no prompt"),
        ("", {}, DataError, "Prompt 0 is empty for 'base'"),
        (["w1", ""], {}, DataError, "Prompt 1 is empty for 'base'"),
        (["w1", 5], {}, DataError, r"Prompt 1 is neither a text nor a conversation.*generate\(input_ids\)"),
        ([[1, 2]], {}, DataError, "Prompt 0 is neither a text nor a conversation"),
        ("w1", {"context": {"exprt": "w2"}}, ConfigurationError, r"no member 'exprt'.*Did you mean 'expert'\?"),
        (QUESTION, {"system": {"x": "w2"}}, ConfigurationError, "no member 'x'"),
        (QUESTION, {"templates": {"x": PLAIN}}, ConfigurationError, "no member 'x'"),
        ("w1", {"system": {"expert": "w2"}}, ConfigurationError, "'expert' has a system prompt, but prompt 0"),
        (["w1", "w2"], {"context": {"expert": ["w3"]}}, ConfigurationError, "'expert' has 1 texts for 2 prompts"),
        ([TURNS[:1]], {"context": {"expert": "w2"}}, DataError, "the conversation has none"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared(prompts: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        prepare_prompts(tokenizers("base", "expert"), prompts, **options)


def test_an_empty_prompt_with_a_context_is_a_prompt() -> None:
    """As is the other way round: guidance asks a member without the prompt, but not without any token."""
    with pytest.raises(DataError, match="Prompt 0 is empty for 'expert'"):
        prepare_prompts(tokenizers("base", "expert"), "", context={"base": "w1"})
    inputs = prepare_prompts(tokenizers("base", "expert"), "", context={"base": "w1", "expert": "<s>"})
    assert texts(inputs, tiny_tokenizer()) == [["w1"], ["<s>"]]
