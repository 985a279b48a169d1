"""Maps between the token ids of two members, on tokenizers of three kinds that are built and trained here."""

import copy
import json
import pickle
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lmcompose.alignment.vocab_maps import (
    VocabularyMap,
    check_same_splitting,
    compare_vocabularies,
    map_vocabulary,
    vocabulary_probe,
)
from lmcompose.alignment.vocabulary import PROBE
from lmcompose.errors import ConfigurationError, TokenizerMismatchError
from tests.tiny import PAD_ID, tiny_model, tiny_tokenizer

SENTENCES = [
    "The quick brown foxes jump over the lazy dogs and the lazier cats.",
    "A composed model reads the same tokens as the models inside it.",
    "def add(left, right): return left + right  # the sum of both",
    "In 1984 there were 12 quick foxes, 7 lazy dogs and a naive cafe.",
]
MINUS_INFINITY = float("-inf")
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def byte_level(sentences: Sequence[str] = SENTENCES, vocab_size: int = 340) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (GPT-2, Llama 3 and Qwen are of this kind), trained on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIALS.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIALS)


def sentencepiece_like(sentences: Sequence[str] = SENTENCES, vocab_size: int = 200) -> PreTrainedTokenizerFast:
    """A BPE tokenizer that spells a space as a low line (Llama 2 and Gemma are of this kind)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", *SPECIALS.values()], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **SPECIALS)


def words(names: Sequence[str], **specials: str) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with these words in this order; it reads other words as the first one."""
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


def rebuilt(tokenizer: PreTrainedTokenizerFast, **model: object) -> PreTrainedTokenizerFast:
    """A copy with parts of its BPE or word-level model replaced (`vocab`, `merges`); added tokens follow the ids."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["model"].update(model)
    for added in data["added_tokens"]:
        added["id"] = data["model"]["vocab"][added["content"]]
    names = ("unk_token", *SPECIALS)
    special = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **special)


def reordered(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> PreTrainedTokenizerFast:
    """The same tokens and merges under shuffled ids."""
    vocabulary = tokenizer.get_vocab()
    ids = list(vocabulary.values())
    random.Random(seed).shuffle(ids)
    return rebuilt(tokenizer, vocab=dict(zip(vocabulary, ids, strict=True)))


def with_added(tokenizer: PreTrainedTokenizerFast, *names: str) -> PreTrainedTokenizerFast:
    """A copy with special tokens added at the end."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    return tokenizer


KINDS = {"word_level": tiny_tokenizer, "byte_level": byte_level, "sentencepiece": sentencepiece_like}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return KINDS[request.param]()


def scores_by_string(
    logits: torch.Tensor, leader: PreTrainedTokenizerFast, member: PreTrainedTokenizerFast, leader_rows: int
) -> torch.Tensor:
    """What `member_scores` must give, token by token: each string's score, and -inf where there is none."""
    theirs = member.get_vocab()
    result = torch.full((*logits.shape[:-1], leader_rows), MINUS_INFINITY)
    for token, i in leader.get_vocab().items():
        if i < leader_rows and theirs.get(token, logits.shape[-1]) < logits.shape[-1]:
            result[..., i] = logits[..., theirs[token]]
    return result


def random_scores(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# Scores


def test_identical_vocabularies_with_equal_rows_give_the_very_same_tensors(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = len(tokenizer)
    mapped = map_vocabulary(tokenizer, copy.deepcopy(tokenizer), rows, rows)
    logits, ids = random_scores(2, 1, rows), torch.arange(rows)
    assert mapped.member_scores(logits) is logits
    assert mapped.member_ids(ids) is ids
    assert (mapped.missing, mapped.padding, mapped.coverage, mapped.identical) == (None, None, 1.0, True)
    assert mapped.to_member.tolist() == list(range(rows))


def test_padding_rows_are_paired_only_where_the_tables_are_equal(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = len(tokenizer)
    mapped = map_vocabulary(tokenizer, copy.deepcopy(tokenizer), tokens + 7, tokens + 7)
    logits = random_scores(2, 1, tokens + 7)
    assert mapped.member_scores(logits) is logits
    assert mapped.missing is None
    assert mapped.padding is not None
    assert mapped.padding.nonzero().flatten().tolist() == list(range(tokens, tokens + 7))


@pytest.mark.parametrize(("leader_padding", "member_padding"), [(0, 1), (0, 5), (5, 0), (3, 8), (8, 3)])
@pytest.mark.parametrize("change", ["none", "reordered", "member_added", "leader_added", "both"])
def test_scores_follow_the_token_strings(
    tokenizer: PreTrainedTokenizerFast, change: str, leader_padding: int, member_padding: int
) -> None:
    leader, member = tokenizer, copy.deepcopy(tokenizer)
    if change in ("reordered", "both"):
        member = reordered(member)
    if change in ("member_added", "both"):
        member = with_added(member, "<|call|>", "<|turn|>")
    if change in ("leader_added", "both"):
        leader = with_added(leader, "<|turn|>", "<|think|>")
    leader_rows, member_rows = len(leader) + leader_padding, len(member) + member_padding
    mapped = map_vocabulary(leader, member, leader_rows, member_rows)

    logits = random_scores(2, 3, member_rows)
    expected = scores_by_string(logits, leader, member, leader_rows)
    assert torch.equal(mapped.member_scores(logits), expected)
    missing = mapped.missing if mapped.missing is not None else torch.zeros(leader_rows, dtype=torch.bool)
    assert torch.equal(missing, expected[0, 0] == MINUS_INFINITY)
    assert mapped.identical == (change == "none")


def test_where_no_id_moves_scores_are_sliced_without_a_copy(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = len(tokenizer)
    mapped = map_vocabulary(tokenizer, with_added(tokenizer, "<|turn|>"), rows, rows + 9)
    logits = random_scores(2, 1, rows + 9)
    assert mapped.member_scores(logits).data_ptr() == logits.data_ptr()
    assert mapped.missing is None


def test_a_token_that_the_member_keeps_in_a_padding_row_of_the_leader_is_not_scored() -> None:
    """A chat model that puts its own token in a spare row of one table: equal rows, other meaning."""
    leader = byte_level()
    tokens = len(leader)
    mapped = map_vocabulary(leader, with_added(leader, "<|turn|>"), tokens + 4, tokens + 4)
    scores = mapped.member_scores(random_scores(1, 1, tokens + 4))
    assert scores[..., tokens:].eq(MINUS_INFINITY).all()
    assert scores[..., :tokens].isfinite().all()
    assert not mapped.identical
    assert mapped.differences() == [f"'<|turn|>' is only in 'member' (id {tokens})"]


@pytest.mark.parametrize(("leader_rows", "member_rows"), [(152_064, 151_936), (151_936, 152_064)])
def test_the_padded_rows_of_qwen(leader_rows: int, member_rows: int) -> None:
    """Qwen2.5: 151,665 tokens, under 151,936 rows in the small models and 152,064 in the large ones."""
    tokens = 151_665
    leader, member = (words([f"t{i}" for i in range(tokens)], eos_token="t7") for _ in range(2))
    mapped = map_vocabulary(leader, member, leader_rows, member_rows, leader_name="7B", member_name="0.5B")
    logits = random_scores(2, 1, member_rows)
    scores = mapped.member_scores(logits)
    assert scores.shape == (2, 1, leader_rows)
    assert torch.equal(scores[..., :tokens], logits[..., :tokens])
    assert scores[..., tokens:].eq(MINUS_INFINITY).all()
    assert mapped.missing is not None
    assert mapped.missing.nonzero().flatten().tolist() == list(range(tokens, leader_rows))
    assert (mapped.identical, mapped.coverage) == (True, 1.0)
    assert mapped.member_ids(torch.tensor([[5, tokens - 1, tokens, leader_rows - 1]])).tolist() == [
        [5, tokens - 1, 7, 7]
    ]


def test_a_hole_among_the_ids_is_missing() -> None:
    """Ids need not be contiguous: Phi-3 leaves some out."""
    holed = Tokenizer(models.WordLevel({"a": 0, "b": 1, "d": 3}, unk_token="a"))
    holed.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    leader = PreTrainedTokenizerFast(tokenizer_object=holed)
    mapped = map_vocabulary(leader, words(["a", "b", "c", "d"]), 4, 4)
    assert mapped.to_member.tolist() == [0, 1, -1, 3]
    assert mapped.member_scores(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [1.0, 2.0, MINUS_INFINITY, 4.0]
    assert mapped.padding is not None
    assert mapped.padding.tolist() == [False, False, True, False]


def test_tokens_without_a_row_do_not_count() -> None:
    """A padding token that was added to a tokenizer whose model was not resized."""
    base = byte_level()
    tokens = len(base)
    added = with_added(base, "[PAD]")
    as_member = map_vocabulary(with_added(base, "[PAD]"), added, tokens + 1, tokens)
    assert as_member.to_member[tokens] == -1
    assert as_member.differences() == [f"'[PAD]' (id {tokens}) is missing in 'member'"]
    as_leader = map_vocabulary(added, base, tokens, tokens)
    assert (as_leader.identical, as_leader.coverage) == (True, 1.0)
    logits = random_scores(1, tokens)
    assert as_leader.member_scores(logits) is logits


def test_the_padding_names_of_a_gguf_file_are_no_tokens() -> None:
    """A tokenizer read from a GGUF file names every padding row; the same family's folder names none."""
    names = ["<unk>", "one", "two", "three"]
    from_gguf = words([*names, "[PAD4]", "[PAD5]", "[PAD9]"])
    mapped = map_vocabulary(from_gguf, words([*names, "[PAD9]"]), 7, 7, min_coverage=1.0)
    assert mapped.padding is not None
    assert mapped.padding.tolist() == [False] * 4 + [True, True, False]
    # "[PAD9]" under another id than 9 is a token like any other.
    assert mapped.to_member.tolist() == [0, 1, 2, 3, -1, -1, 4]
    same = map_vocabulary(words([*names, "[PAD4]", "[PAD5]"]), words(names), 6, 6)
    logits = random_scores(1, 6)
    assert same.member_scores(logits) is logits
    assert same.identical


def test_scores_keep_dtype_and_pass_gradients() -> None:
    leader = byte_level()
    member = with_added(reordered(leader), "<|turn|>")
    mapped = map_vocabulary(with_added(leader, "<|think|>"), member, len(leader) + 3, len(member))
    assert mapped.member_scores(random_scores(1, len(member)).bfloat16()).dtype == torch.bfloat16
    logits = random_scores(1, len(member)).requires_grad_()
    scores = mapped.member_scores(logits)
    scores[scores.isfinite()].sum().backward()
    assert logits.grad is not None
    assert logits.grad.sum() == len(leader)
    assert logits.grad[0, member.get_vocab()["<|turn|>"]] == 0


def test_a_map_first_used_in_inference_mode_can_be_used_in_training() -> None:
    leader = byte_level()
    rows = len(leader)
    mapped = map_vocabulary(leader, reordered(leader), rows, rows)
    with torch.inference_mode():
        mapped.member_scores(random_scores(1, rows))
    logits = random_scores(1, rows).requires_grad_()
    mapped.member_scores(logits).square().sum().backward()
    assert logits.grad is not None
    assert torch.allclose(logits.grad, 2 * logits)


def test_the_tables_are_made_on_the_device_of_the_scores() -> None:
    leader = byte_level()
    rows = len(leader) + 3
    mapped = map_vocabulary(leader, reordered(leader), rows, rows)
    scores = mapped.member_scores(torch.empty(2, 1, rows, device="meta"))
    assert (scores.device.type, scores.shape) == ("meta", (2, 1, rows))
    on_meta = mapped.missing_on(torch.device("meta"))
    assert on_meta is not None
    assert on_meta.device.type == "meta"
    assert on_meta is mapped.missing_on(torch.device("meta"))
    assert mapped.missing is not None
    assert mapped.missing.device.type == "cpu"


def test_a_map_is_made_on_the_cpu_whatever_the_default_device() -> None:
    with torch.device("meta"):
        maps = [
            map_vocabulary(tiny_tokenizer(), reordered(tiny_tokenizer()), 99, 97),
            map_vocabulary(tiny_tokenizer(), tiny_tokenizer(), 97, 97),
            map_vocabulary(None, None, 97, 97),
        ]
    assert [mapped.to_member.device.type for mapped in maps] == ["cpu"] * 3
    assert maps[1].member_ids(torch.arange(97)).tolist() == list(range(97))


def test_scores_of_another_width_are_refused() -> None:
    mapped = map_vocabulary(tiny_tokenizer(), tiny_tokenizer(), 97, 97, member_name="expert")
    with pytest.raises(TokenizerMismatchError, match="'expert' scored 98 token ids where 97 were expected"):
        mapped.member_scores(torch.zeros(1, 98))


# Ids


def test_ids_of_a_text_become_the_ids_of_the_member(tokenizer: PreTrainedTokenizerFast) -> None:
    member = reordered(tokenizer)
    mapped = map_vocabulary(tokenizer, member, len(tokenizer), len(member) + 3)
    text = "w4 w20 user : 7" if tokenizer.unk_token and "w4" in tokenizer.get_vocab() else SENTENCES[0]
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert not torch.equal(mapped.member_ids(ids), ids)
    assert mapped.member_ids(ids).tolist() == [member(text)["input_ids"]]
    assert mapped.member_ids(ids.int()).dtype == torch.int32


def test_ids_and_scores_of_a_model_with_shuffled_rows_are_those_of_the_model() -> None:
    """The whole round: a model whose rows follow a shuffled tokenizer is the same model through the map."""
    leader = tiny_tokenizer()
    member = reordered(leader)
    mapped = map_vocabulary(leader, member, 97, 97)
    model, shuffled = tiny_model("llama"), tiny_model("llama")
    with torch.no_grad():
        for table in (shuffled.get_input_embeddings(), shuffled.get_output_embeddings()):
            assert isinstance(table.weight, torch.Tensor)
            table.weight[mapped.to_member] = table.weight.clone()
    ids = torch.tensor([[1, 20, 33, 5, 96, PAD_ID, 12]])
    with torch.no_grad():
        expected, plain = model(ids).logits, shuffled(ids).logits
        scores = mapped.member_scores(shuffled(mapped.member_ids(ids)).logits)
    assert (plain - expected).abs().max() > 1e-3
    assert torch.allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("specials", "expected"),
    [
        ({"unk_token": "<u>", "eos_token": "<e>", "pad_token": "<p>", "bos_token": "<b>"}, "<u>"),
        ({"eos_token": "<e>", "pad_token": "<p>", "bos_token": "<b>"}, "<e>"),
        ({"pad_token": "<p>", "bos_token": "<b>"}, "<p>"),
        ({"bos_token": "<b>"}, "<b>"),
        ({}, "zero"),
    ],
)
def test_a_missing_token_is_read_as_unknown_else_end_else_padding_else_begin(
    specials: dict[str, str], expected: str
) -> None:
    names = ["zero", "<b>", "<p>", "<e>", "<u>", "other"]
    leader = words([*names, "new"])
    mapped = map_vocabulary(leader, words(names, **specials), 9, 6, min_coverage=0.5)
    # Six common tokens stay; the new token and two padding rows are replaced.
    assert mapped.member_ids(torch.arange(9)).tolist() == [*range(6), *[names.index(expected)] * 3]


def test_a_stand_in_without_a_row_is_passed_over() -> None:
    names = ["zero", "<b>", "<p>", "<e>"]
    member = words([*names, "<u>"], unk_token="<u>", eos_token="<e>")
    mapped = map_vocabulary(words([*names, "<u>"]), member, 5, 4, min_coverage=0.5)
    assert mapped.stand_in == 3


def test_ids_out_of_range_are_not_wrapped_around() -> None:
    mapped = map_vocabulary(tiny_tokenizer(), reordered(tiny_tokenizer()), 97, 97)
    for wrong in (-1, 97):
        with pytest.raises((IndexError, RuntimeError)):
            mapped.member_ids(torch.tensor([[wrong]]))


# Refusals


def test_low_coverage_names_the_share_and_the_first_missing_tokens() -> None:
    with pytest.raises(
        TokenizerMismatchError,
        match=r"'small' has 3 of the 5 tokens of 'big' \(60.0%\), and at least 95.0% are needed: "
        r"'c' \(id 2\) is missing in 'small'; 'e' \(id 4\) is missing in 'small'; 'a' is id 0 in 'big' and id 2 in",
    ):
        map_vocabulary(
            words(["a", "b", "c", "d", "e"]), words(["d", "b", "a"]), 5, 3, leader_name="big", member_name="small"
        )


def test_the_least_coverage_can_be_set_and_is_met_exactly() -> None:
    leader, member = words(["a", "b", "c", "d"]), words(["a", "b", "c"])
    assert map_vocabulary(leader, member, 4, 3, min_coverage=0.75).coverage == 0.75
    with pytest.raises(TokenizerMismatchError, match="at least 76"):
        map_vocabulary(leader, member, 4, 3, min_coverage=0.76)
    for wrong in (-0.1, 1.5, 95):
        with pytest.raises(ConfigurationError, match="share from 0 to 1"):
            map_vocabulary(leader, member, 4, 3, min_coverage=wrong)


def test_tokenizers_of_different_kinds_are_refused() -> None:
    byte, piece = byte_level(), sentencepiece_like()
    for leader, member in ((byte, piece), (piece, byte)):
        with pytest.raises(TokenizerMismatchError, match=r"tokens of 'leader'.*is missing in 'member'.*one family"):
            map_vocabulary(leader, member, len(leader), len(member))


def test_other_training_text_is_refused_in_the_direction_of_the_larger_vocabulary_too() -> None:
    """A member that has every token of the leader still reads another text when its merges go on."""
    leader = byte_level(vocab_size=300)
    member = byte_level(vocab_size=340)
    assert leader.get_vocab().keys() < member.get_vocab().keys()
    with pytest.raises(TokenizerMismatchError, match=r"split text differently.*one family"):
        map_vocabulary(leader, member, len(leader), len(member))


def test_the_same_vocabulary_with_other_merges_is_refused() -> None:
    leader = byte_level()
    merges = json.loads(leader.backend_tokenizer.to_str())["model"]["merges"]
    member = rebuilt(leader, merges=merges[::-1])
    assert leader.get_vocab() == member.get_vocab()
    with pytest.raises(TokenizerMismatchError, match=r"'big' and 'small' share a vocabulary but split text different"):
        map_vocabulary(leader, member, len(leader), len(leader), leader_name="big", member_name="small")


def test_the_same_vocabulary_with_another_normalizer_is_refused() -> None:
    leader = byte_level()
    member = reordered(leader)
    map_vocabulary(leader, member, len(leader), len(leader))
    member.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(TokenizerMismatchError, match=r"from token 0 on, \['T.*\] and \['t.*\]"):
        map_vocabulary(leader, member, len(leader), len(leader))


def test_merges_that_the_fixed_text_never_uses_are_compared_too() -> None:
    """A vocabulary in another script: the fixed probe is unknown tokens to both."""
    leader = sentencepiece_like(["абвабв бвабва вабваб абаб бвбв"], vocab_size=30)
    merges = json.loads(leader.backend_tokenizer.to_str())["model"]["merges"]
    member = rebuilt(leader, merges=merges[::-1])
    assert leader(PROBE)["input_ids"] == member(PROBE)["input_ids"]
    with pytest.raises(TokenizerMismatchError, match="split text differently"):
        check_same_splitting(leader, member, common=list(leader.get_vocab()))
    check_same_splitting(leader, member, common=[])


def test_the_second_probe_runs_tokens_apart_and_together() -> None:
    tokenizer, names = words([f"t{i}" for i in range(9)]), [f"t{i}" for i in range(9)]
    assert vocabulary_probe(tokenizer, names[:3]) == "t0 t1 t2 t0t1t2"
    assert vocabulary_probe(tokenizer, names, size=3) == "t0 t3 t6 t0t3t6"
    assert vocabulary_probe(tokenizer, names, size=5).startswith("t0 t1 t2 t3 t4 t0")


def test_added_tokens_that_one_side_lacks_do_not_disturb_the_splitting(tokenizer: PreTrainedTokenizerFast) -> None:
    """Inside a text an added token is one token to the side that has it and many to the other."""
    added = with_added(tokenizer, "<|turn|>")
    with pytest.raises(TokenizerMismatchError, match="split text differently"):
        check_same_splitting(added, tokenizer, common=["<|turn|>"])
    assert map_vocabulary(added, tokenizer, len(added), len(tokenizer)).compared is not None


def test_without_both_tokenizers_equal_rows_are_taken_as_they_stand() -> None:
    for leader, member in ((None, None), (tiny_tokenizer(), None), (None, tiny_tokenizer())):
        mapped = map_vocabulary(leader, member, 97, 97)
        logits = random_scores(1, 97)
        assert mapped.member_scores(logits) is logits
        assert (mapped.identical, mapped.coverage, mapped.summary()["compared"]) == (True, 1.0, False)
        with pytest.raises(TokenizerMismatchError, match="'base' has 97 token ids and 'expert' has 98"):
            map_vocabulary(leader, member, 97, 98, leader_name="base", member_name="expert")


# What is shown


def test_differences_are_named_missing_first_then_moved_then_extra() -> None:
    leader = words(["<unk>", "b", "c", "d"])
    member = words(["<unk>", "c", "b", "new"])
    mapped = map_vocabulary(leader, member, 4, 5, min_coverage=0.5, leader_name="base", member_name="expert")
    assert mapped.differences(10) == [
        "'d' (id 3) is missing in 'expert'",
        "'b' is id 1 in 'base' and id 2 in 'expert'",
        "'c' is id 2 in 'base' and id 1 in 'expert'",
        "'new' is only in 'expert' (id 3)",
    ]
    assert len(mapped.differences()) == 3
    assert mapped.differences(0) == []


def test_counts_are_complete_where_sentences_are_cut() -> None:
    vocabulary = {f"t{i}": i for i in range(500)}
    found = compare_vocabularies(vocabulary, {})
    assert (found.tokens, found.missing, found.moved, found.extra, len(found.sentences)) == (500, 500, 0, 0, 100)


def test_the_summary_is_json() -> None:
    leader = with_added(byte_level(), "<|think|>")
    member = with_added(byte_level(), "<|turn|>", "<|call|>", "<|think|>")
    mapped = map_vocabulary(leader, member, 350, 351, leader_name="base", member_name="expert")
    assert json.loads(json.dumps(mapped.summary(limit=1))) == {
        "leader": "base",
        "member": "expert",
        "compared": True,
        "identical": False,
        "coverage": 1.0,
        "leader_rows": 350,
        "member_rows": 351,
        "leader_tokens": 341,
        "missing_tokens": 0,
        "moved_tokens": 1,
        "extra_tokens": 2,
        "padding_rows": 9,
        "missing_rows": 9,
        "stand_in": 1,
        "differences": ["'<|think|>' is id 340 in 'base' and id 342 in 'expert'"],
    }


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda mapped: pickle.loads(pickle.dumps(mapped))])
def test_a_copy_maps_alike(copied: Callable[[VocabularyMap], VocabularyMap]) -> None:
    leader = byte_level()
    rows = len(leader)
    mapped = map_vocabulary(leader, reordered(leader), rows + 2, rows)
    logits = random_scores(1, rows)
    expected = mapped.member_scores(logits)
    assert torch.equal(copied(mapped).member_scores(logits), expected)
