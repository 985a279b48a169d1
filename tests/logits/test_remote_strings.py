"""Which token a string means, and which text a server cuts into the wanted tokens, on tokenizers of both families."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError
from lmcompose.logits.remote import RemoteBase
from lmcompose.logits.remote.prompts import Prompt, continuation, tokenize
from lmcompose.logits.remote.strings import TokenStrings
from tests.logits.remote_server import PLAIN, CompletionsServer
from tests.tiny import EOS_ID, tiny_model, tiny_tokenizer


def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, as GPT-2's: all bytes and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a")]
    vocab = {token: i for i, token in enumerate(["<|end|>", *alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def with_spaces() -> PreTrainedTokenizerFast:
    """A tokenizer that writes spaces as sentencepiece does, and puts a token before every text."""
    words = ["<s>", "</s>", "<unk>", "▁", "▁the", "the", "▁cat", "▁a", "s", "cat"]
    tokenizer = Tokenizer(models.Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    tokenizer.decoder = decoders.Metaspace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def id_of(tokenizer: PreTrainedTokenizerBase, entry: str) -> int:
    return tokenizer.get_vocab()[entry]


def test_one_spelling_is_recognised_by_what_no_other_has() -> None:
    tokenizer = with_spaces()
    strings = TokenStrings(tokenizer)
    assert strings.tokens("the") == (id_of(tokenizer, "▁the"), id_of(tokenizer, "the"))
    strings.learn([" the", "s"])  # a space: the texts within a line
    assert strings.tokens(" the") == (id_of(tokenizer, "▁the"),)
    assert strings.tokens("the") == (id_of(tokenizer, "the"),)


def test_texts_of_tokens_alone_leave_two_tokens_for_one_string() -> None:
    tokenizer = with_spaces()
    strings = TokenStrings(tokenizer)
    strings.learn(["the", "a"])  # "a" begins no line and follows no space: it is the text of a token alone
    assert strings.spellings == ("alone",)
    assert strings.tokens("the") == (id_of(tokenizer, "▁the"), id_of(tokenizer, "the"))
    assert strings.tokens("a") == (id_of(tokenizer, "▁a"),)


def test_entries_of_the_vocabulary() -> None:
    tokenizer = with_spaces()
    strings = TokenStrings(tokenizer)
    strings.learn(["▁the"])
    assert strings.spellings == ("entry",)
    assert strings.tokens("the") == (id_of(tokenizer, "the"),)


@pytest.mark.parametrize("string", ["", "\ufffd", " \ufffd"])
def test_what_is_no_whole_character_can_be_any_such_token_or_a_special_one(string: str) -> None:
    """llama-cpp-python writes nothing for these, vLLM sometimes, and others write U+FFFD."""
    tokenizer = byte_level()
    strings = TokenStrings(tokenizer)
    strings.learn([string, " the"])
    assert strings.tokens(" the") == (id_of(tokenizer, "Ġthe"),)
    first_byte = tokenizer("é", add_special_tokens=False)["input_ids"][0]
    assert {tokenizer.eos_token_id, first_byte} <= set(strings.tokens(string))
    assert id_of(tokenizer, "a") not in strings.tokens(string)


def test_what_is_no_whole_character_rules_out_no_spelling() -> None:
    """Else "the" would be taken for the token within a word, from a server that means the one that begins it."""
    strings = TokenStrings(with_spaces())
    strings.learn(["", "\ufffd", "the"])
    assert len(strings.tokens("the")) == 2


def test_a_string_of_no_token_is_none() -> None:
    strings = TokenStrings(byte_level())
    strings.learn(["never seen"])
    assert strings.tokens("never seen") == ()
    assert strings.tokens("the") == (id_of(byte_level(), "the"),)


# ---- texts --------------------------------------------------------------------------------------------------------


def test_a_given_text_goes_on_as_it_was_given() -> None:
    tokenizer = with_spaces()
    ids = tokenize(tokenizer, "the cat")
    prompt = Prompt(tuple(ids), "the cat", tokenizer)
    assert prompt.spelled() == ("the cat", True)
    assert prompt.spelled([id_of(tokenizer, "s"), id_of(tokenizer, "▁the")]) == ("the cats the", True)


def test_a_text_that_comes_out_as_other_tokens_is_said_to() -> None:
    tokenizer = byte_level()
    ids = tokenize(tokenizer, "a")
    t, h = id_of(tokenizer, "t"), id_of(tokenizer, "h")
    assert Prompt(tuple(ids), "a", tokenizer).spelled([t]) == ("at", True)
    assert Prompt(tuple(ids), "a", tokenizer).spelled([t, h]) == ("ath", False)


def test_ids_without_a_text_get_one() -> None:
    tokenizer = with_spaces()
    ids = tokenize(tokenizer, "the cat")
    assert Prompt(tuple(ids), None, tokenizer).spelled() == ("the cat", True)
    # a server that adds nothing to a text needs the special token in it
    text, exact = Prompt(tuple(ids), None, tokenizer, special=False).spelled()
    assert exact
    assert tokenize(tokenizer, text, special=False) == ids


def test_what_new_tokens_add_keeps_its_space() -> None:
    tokenizer = with_spaces()
    ids = tokenize(tokenizer, "the")
    assert continuation(tokenizer, ids, [id_of(tokenizer, "▁cat")]) == " cat"
    assert continuation(tokenizer, ids, [id_of(tokenizer, "s"), tokenizer.eos_token_id]) == "s"


def test_a_character_in_two_tokens_comes_out_whole() -> None:
    tokenizer = byte_level()
    ids = tokenize(tokenizer, "é")
    assert len(ids) == 2
    assert continuation(tokenizer, ids[:1], ids[1:]) != "é"  # its first half was in the prompt
    assert continuation(tokenizer, tokenize(tokenizer, "a"), ids) == "é"


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(prompt: str | list[int]) -> None:
    with CompletionsServer(tiny_model("llama"), tiny_tokenizer(), PLAIN) as server:
        base = RemoteBase(server.url, None, tiny_tokenizer())
        with pytest.raises(ConfigurationError, match="empty"):
            base.prompt(prompt)


def test_ids_that_no_text_comes_out_as_are_refused_by_a_server_of_texts() -> None:
    tokenizer = byte_level()
    model = tiny_model("llama", vocab_size=len(tokenizer), eos_token_id=0)
    with CompletionsServer(model, tokenizer, PLAIN) as server:
        base = RemoteBase(server.url, None, tokenizer)
        halves = [id_of(tokenizer, letter) for letter in "the"]
        assert base.prompt(halves[:1]).spelled() == ("t", True)
        with pytest.raises(ConfigurationError, match="reads text only"):
            base.prompt(halves)  # the tokenizer has one token for them
        with pytest.raises(ConfigurationError, match="ids from 0 to"):
            base.prompt([20, len(tokenizer)])


def test_the_end_of_a_text_is_the_tokenizers() -> None:
    assert RemoteBase("http://host", "m", tiny_tokenizer()).end == [EOS_ID]


def test_a_base_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigurationError, match="tokenizer="):
        RemoteBase("http://host", "m")
    with pytest.raises(ConfigurationError, match="top_logprobs"):
        RemoteBase("http://host", "m", tiny_tokenizer(), top_logprobs=0)
