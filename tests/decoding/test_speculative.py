"""Greedy texts with speculation are those of plain decoding, token for token, whatever is asked of `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.decoding.speculative import Speculation
from tests.compositions import random_composition
from tests.decoding.drafted import BATCH, IDS, MASK, ROW, assert_same_text, drafted, texts
from tests.tiny import ARCHITECTURES, WINDOW, Pair, random_ids, tiny_model

FIXED = Speculation(draft_length=4, adaptive=False)

WAYS = {
    "paced": lambda: Speculation(cost=0.1),
    "paced, no lookup": lambda: Speculation(cost=0.1, prompt_lookup_num_tokens=0),
    "all that is found": lambda: Speculation(draft_length=6, adaptive=False, prompt_lookup_num_tokens=3),
    "lookup": lambda: Speculation(drafter="lookup", adaptive=False, draft_length=3),
}
"""How drafts come about; `FIXED` has no lookup, and no token after the draft."""

USUAL = (
    "llama", "mistral", "qwen2_sliding", "gemma2", "gemma3", "phi3", "olmo2", "gpt_neox", "gpt2", "gpt_neo", "opt",
    "falcon", "bloom", "mpt",
)  # fmt: skip


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param(arch, marks=() if arch in USUAL else pytest.mark.slow)
        for arch in ARCHITECTURES
        if ARCHITECTURES[arch].takes_back  # the others decode plainly: see tests/logits/test_speculation.py
    ],
)
def test_every_architecture(arch: str) -> None:
    """As base and as drafter; prompts and texts are longer than the sliding windows."""
    alike = {} if arch in USUAL else {"terms": 2, "formula": "0.2 * base + expert"}  # so that drafts are kept, too
    model = drafted(arch, **alike)
    for inputs in (BATCH, ROW):
        result = assert_same_text(model, inputs, FIXED)
        assert result.speculation["acceptance"] > 0
        # what was thrown away is in no cache
        assert set(getattr(result, CACHE_ARGUMENT).lengths().values()) == {result.sequences.shape[1] - 1}


@pytest.mark.parametrize(("base", "expert"), [("gemma2", "gpt2"), ("bloom", "mistral"), ("gpt_neo", "llama")])
def test_drafters_of_another_architecture(base: str, expert: str) -> None:
    assert_same_text(drafted(base, expert), BATCH)


@pytest.fixture(scope="module")
def model() -> LogitForCausalLM:
    return drafted("mistral", "gpt2")


@pytest.mark.parametrize("terms", [2, 4])
@pytest.mark.parametrize("inputs", [BATCH, ROW], ids=["batch", "row"])
def test_two_and_four_terms(terms: int, inputs: dict[str, Any]) -> None:
    drafts = assert_same_text(drafted("qwen2", terms=terms), inputs).speculation
    assert 0 < drafts["acceptance"] < 1


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[5], [17, 30]], "suppress_tokens": [8, 9]},
        {"eos_token_id": 40, "min_new_tokens": 6, "forced_eos_token_id": 40},
        {"eos_token_id": 40, "exponential_decay_length_penalty": (2, 1.5)},
        {"prefix_allowed_tokens_fn": lambda row, ids: [(int(ids[-1]) * 7 + row + i) % 97 for i in range(12)]},
        {"renormalize_logits": True, "sequence_bias": [[[7], 3.0]]},
        {"prefill_chunk_size": 3},
    ],
    ids=lambda options: "+".join(options),
)
def test_processors_see_the_prefix_of_each_position(model: LogitForCausalLM, options: dict[str, Any]) -> None:
    assert_same_text(model, BATCH, FIXED, **options)


class Inverted(LogitsProcessor):
    """Turns the scores that it is given over, in place."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.neg_()


def test_a_processor_that_writes_in_place(model: LogitForCausalLM) -> None:
    assert_same_text(model, BATCH, FIXED, logits_processor=LogitsProcessorList([Inverted()]))


@pytest.mark.parametrize("new", [1, 2, 3, 7])
@pytest.mark.parametrize("bonus", [False, True])
def test_the_longest_text_is_not_exceeded(new: int, bonus: bool) -> None:
    more = {"small": tiny_model("llama", 1, num_hidden_layers=2)} if bonus else {}
    model = drafted("llama", more=more, drafter="small" if bonus else None)
    longest = []
    handle = model.member("base").register_forward_pre_hook(
        lambda module, args, kwargs: longest.append(int(kwargs["position_ids"].max()) + 1), with_kwargs=True
    )
    speculative = Speculation(draft_length=6, adaptive=False)
    written = texts(model, speculative, ROW, max_new_tokens=new)
    handle.remove()
    assert written.shape[1] == IDS.shape[1] + new
    assert max(longest) == written.shape[1] - 1
    assert written.tolist() == texts(model, None, ROW, max_new_tokens=new).tolist()


def test_rows_end_at_their_own_token(model: LogitForCausalLM) -> None:
    """Each token of a text in turn is the end-of-text token: at every place of a block, in every row."""
    plain = texts(model, None, BATCH)[:, IDS.shape[1] :]
    ended = set()
    for token in {int(plain[row, at]) for row, at in ((0, 5), (0, 7), (0, 12), (1, 10), (1, 15), (2, 3))}:
        result = assert_same_text(model, BATCH, FIXED, eos_token_id=[token, 96]).sequences[:, IDS.shape[1] :]
        ended |= {int((row == token).nonzero()[0]) for row in result if (row == token).any()}
    assert len(ended) > 5


def test_a_row_that_ended_holds_no_other_back() -> None:
    """Rows are as fast as the slowest of them that still writes."""
    model = drafted("gemma2")
    plain = texts(model, None, BATCH, max_new_tokens=30)[:, IDS.shape[1] :]
    first = int(plain[1, 1])
    assert not (plain[[0, 2], :2] == first).any()
    both = model.generate(
        **BATCH, max_new_tokens=30, do_sample=False, eos_token_id=first, pad_token_id=0, speculative=FIXED,
        return_dict_in_generate=True,
    )  # fmt: skip
    others = model.generate(
        IDS[[0, 2]], attention_mask=MASK[[0, 2]], max_new_tokens=30, do_sample=False, eos_token_id=first,
        pad_token_id=0, speculative=FIXED, return_dict_in_generate=True,
    )  # fmt: skip
    assert both.sequences[[0, 2]].tolist() == others.sequences.tolist()
    assert both.speculation["passes"] <= others.speculation["passes"] + 1


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: what `stop_strings` can take apart, as it cannot whole words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a", padding_side="left")


@pytest.mark.parametrize("eos", [None, 250])
def test_stop_strings_end_each_row(eos: int | None) -> None:
    """Without an end-of-text token, `generate` lets a stopped row write on until all have stopped: so do we."""
    tokenizer = byte_tokenizer()
    members = {
        role: (tiny_model("llama", seed, vocab_size=256, num_hidden_layers=1), tokenizer)
        for seed, role in enumerate(("base", "expert"))
    }
    model = lmcompose.combine("0.5 * base + expert", members)
    plain = texts(model, None, BATCH)[:, IDS.shape[1] :]
    stops = [tokenizer.decode(plain[row, 4 + row : 6 + row]) for row in (0, 1)]
    stopped = assert_same_text(
        model, BATCH, FIXED, stop_strings=stops, tokenizer=tokenizer, eos_token_id=eos, max_new_tokens=30
    )
    whole = texts(model, None, BATCH, max_new_tokens=30)
    assert (stopped.sequences[:2] != whole[:2, : stopped.sequences.shape[1]]).any() == (eos is not None)


class Columns(BaseStreamer):
    """What a streamer is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.tolist())

    def end(self) -> None:
        self.values.append("end")


def test_streamers_see_every_token_once(model: LogitForCausalLM) -> None:
    seen = []
    for speculative in (None, FIXED):
        seen.append(Columns())
        texts(model, speculative, BATCH, streamer=seen[-1])
    assert seen[0].values == seen[1].values
    assert len(seen[0].values) == 1 + 18 + 1


def test_scores_and_logits_are_those_of_plain_decoding(model: LogitForCausalLM) -> None:
    options = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True, "top_k": 5,
               "repetition_penalty": 1.3, "max_new_tokens": 9, "do_sample": False, "eos_token_id": None,
               "pad_token_id": 0}  # fmt: skip
    plain = model.generate(**BATCH, **options)
    fast = model.generate(**BATCH, **options, speculative=FIXED)
    assert fast.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(fast[name]) == 9
        for ours, theirs in zip(fast[name], plain[name], strict=True):
            torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)
    assert fast.speculation["tokens"] == 9
    assert fast.to_tuple()[-1] is fast.speculation


def test_the_text_goes_on_from_the_cache(model: LogitForCausalLM) -> None:
    """Also plainly: sliding windows have let go of what left them."""
    whole = texts(model, None, BATCH, max_new_tokens=24)
    half = assert_same_text(model, BATCH, FIXED, max_new_tokens=12)
    inputs = {"input_ids": half.sequences, "attention_mask": torch.nn.functional.pad(MASK, (0, 12), value=1)}
    layers = getattr(half, CACHE_ARGUMENT).members["base"].layers
    assert {(layer.keys.shape[2], layer.record_past) for layer in layers} == {(WINDOW - 1, False)}
    for speculative in (FIXED, None):
        again = assert_same_text(model, BATCH, FIXED, max_new_tokens=12)
        cache = {CACHE_ARGUMENT: getattr(again, CACHE_ARGUMENT)}
        assert texts(model, speculative, inputs | cache, max_new_tokens=12).tolist() == whole.tolist()


# ---------------------------------------------------------------------------------------- what compositions can be


@pytest.mark.parametrize(
    "options",
    [
        {"scores": "logprobs", "temperatures": {"expert": 0.7, "antiexpert": 1.3}},
        {"plausibility": {"member": "base", "kind": "ratio", "value": 0.3}},
        {"plausibility": {"member": "expert", "kind": "top_k", "value": 5}},
    ],
    ids=["logprobs", "ratio", "top_k"],
)
def test_kinds_of_scores_and_masks(options: dict[str, Any]) -> None:
    assert_same_text(drafted("llama", **options), BATCH, FIXED)


@pytest.mark.parametrize(
    "alpha",
    [lambda step: 1.0 if step % 2 else 0.2, [1.5, 0.5, 0.1, 1.0], torch.tensor([0.2, 1.0, 1.7]), 0.9],
    ids=["function", "list", "rows", "number"],
)
def test_schedules_know_the_step_of_each_position(alpha: Any) -> None:
    model = drafted("llama", formula="0.4 * base + alpha * (expert - 0.3 * antiexpert)", alpha=1.0)
    result = assert_same_text(model, BATCH, FIXED, alpha=alpha)
    assert result.sequences.tolist() != texts(model, None, BATCH).tolist()


@pytest.mark.parametrize("drafter", [None, "base", "antiexpert"])
def test_members_that_read_other_texts(drafter: str | None) -> None:
    """Longer and shorter contexts than the leader's, padded on the left."""
    model = drafted("gemma2", "gpt2")
    rows = [[random_ids(1, length, seed=60 + length)[0] for length in lengths] for lengths in ((14, 3, 6), (2, 4, 4))]
    ids = torch.full((3, 2, 14), 7)
    mask = torch.zeros_like(ids)
    for member in range(2):
        for row in range(3):
            ids[row, member, 14 - len(rows[member][row]) :] = rows[member][row]
            mask[row, member, 14 - len(rows[member][row]) :] = 1
    others = {"member_input_ids": ids, "member_attention_mask": mask}
    speculative = Speculation(drafter=drafter, draft_length=4, adaptive=False)
    result = assert_same_text(model, BATCH | others, speculative)
    assert result.sequences.tolist() != texts(model, None, BATCH).tolist()
    schedule = assert_same_text(model, BATCH | others, speculative, prefill_chunk_size=4)
    assert schedule.sequences.tolist() == result.sequences.tolist()


def test_a_drafter_outside_of_the_formula() -> None:
    """It reads the prompt when it is first asked, and is one token behind whenever all of a draft was kept."""
    model = drafted("mistral", more={"small": tiny_model("mistral", 1, num_hidden_layers=2)}, drafter="small")
    assert model.formula.members == ("base", "expert", "antiexpert")
    kept = assert_same_text(model, BATCH, FIXED).speculation
    assert kept["drafter"] == "small"
    result = assert_same_text(model, ROW, Speculation(draft_length=2, adaptive=False))
    lengths = getattr(result, CACHE_ARGUMENT).lengths()
    assert {lengths[role] for role in ("base", "expert", "antiexpert")} == {result.sequences.shape[1] - 1}
    assert result.sequences.shape[1] - 2 <= lengths["small"] <= result.sequences.shape[1] - 1
    plain = model.generate(**ROW, max_new_tokens=3, eos_token_id=None, return_dict_in_generate=True)
    assert getattr(plain, CACHE_ARGUMENT).lengths()["small"] == 0  # it costs nothing where nobody drafts


def lora(seed: int, **options: Any) -> Any:
    model = get_peft_model(tiny_model("llama", 1, num_hidden_layers=2), LoraConfig(r=4, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def pair(share: bool = True) -> LogitForCausalLM:
    """Expert and antiexpert are one model, with an adapter and without."""
    expert = lora(0)
    return lmcompose.combine(
        "0.4 * base + expert - 0.5 * antiexpert",
        {"base": tiny_model("gpt2", 0), "expert": expert, "antiexpert": expert.get_base_model()},
        share_passes=share,
    )


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("inputs", [BATCH, ROW], ids=["batch", "row"])
def test_expert_and_antiexpert_of_one_model(share: bool, inputs: dict[str, Any]) -> None:
    model = pair(share)
    assert len(model.passes) == (2 if share else 3)
    for speculative in (FIXED, WAYS["paced"](), WAYS["all that is found"]()):
        assert_same_text(model, inputs, speculative)


def test_a_composition_as_member_and_as_drafter() -> None:
    calm = random_composition(Pair("mistral", "llama"))
    inner = drafted("gpt2", terms=2)
    for members in ({"base": tiny_model("llama", 5), "expert": calm}, {"base": calm, "expert": inner}):
        model = lmcompose.combine("0.6 * base + expert", members)
        assert_same_text(model, BATCH, FIXED)


def test_adaptive_lengths_write_the_same(model: LogitForCausalLM) -> None:
    lengths = [
        assert_same_text(model, ROW, Speculation(cost=cost, draft_length=12), max_new_tokens=24).speculation[
            "draft_length"
        ]
        for cost in (0.01, 3.0)
    ]
    assert lengths[0] > 2 * lengths[1] >= 2


def test_positions_that_end_are_not_overrun() -> None:
    """A draft may not ask for positions that plain decoding would never have come to."""
    short = tiny_model("gpt2", 1, max_position_embeddings=24, num_hidden_layers=2)
    model = lmcompose.combine("0.4 * base + expert", {"base": tiny_model("llama", 0), "expert": short})
    result = assert_same_text(model, BATCH, Speculation(draft_length=8, adaptive=False), max_new_tokens=14)
    assert result.sequences.shape[1] == 25  # 24 of them were read
    plain = texts(model, None, ROW, max_new_tokens=14)[0, ROW["input_ids"].shape[1] :].tolist()
    end = next(token for token in plain[::-1] if plain.index(token) >= 8)
    assert_same_text(model, ROW, Speculation(draft_length=8, adaptive=False), max_new_tokens=60, eos_token_id=end)


# ---------------------------------------------------------------------------------------------- how drafts come about

CIRCLES = {"input_ids": IDS[:, -5:].repeat(1, 3), "attention_mask": MASK[:, -5:].repeat(1, 3)}
"""Rows without padding whose tokens come again and again, so that all of them find some."""


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2", "gpt_neox", "bloom"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_draft(arch: str, way: str) -> None:
    """In a batch, padded on the left or going round in circles, and one row alone; with and without ends."""
    model = drafted(arch, "mpt" if arch == "bloom" else "llama")
    guessed = right = ahead = 0
    for inputs in (ROW, CIRCLES):
        found = assert_same_text(model, inputs, WAYS[way](), max_new_tokens=24).speculation
        guessed, right = guessed + found["guessed"], right + found["right"]
        ahead += found["drafter_passes"] - found["positions"]
    plain = texts(model, None, BATCH, max_new_tokens=24)
    speculative = WAYS[way]()
    assert texts(model, speculative, BATCH, max_new_tokens=24).tolist() == plain.tolist()
    end = int(plain[1, -6])
    ended = texts(model, None, CIRCLES, eos_token_id=end, max_new_tokens=24)
    assert texts(model, speculative, CIRCLES, eos_token_id=end, max_new_tokens=24).tolist() == ended.tolist()
    assert right <= guessed
    if way in ("all that is found", "lookup"):
        assert guessed > 0
    if way == "paced, no lookup":
        assert guessed == 0 < ahead  # some passes of the drafter were for a token after the draft


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_draft_where_members_read_other_texts(way: str) -> None:
    model = pair()
    ids = torch.cat([random_ids(2, 14, seed=row)[None] for row in range(3)])
    others = {"member_input_ids": ids, "member_attention_mask": torch.ones_like(ids)}
    others["member_attention_mask"][1, 0, :9] = 0
    for inputs in (BATCH, CIRCLES):
        for alpha in ({}, {"repetition_penalty": 1.3}):
            plain = texts(model, None, inputs | others, **alpha)
            assert texts(model, WAYS[way](), inputs | others, **alpha).tolist() == plain.tolist()


def test_a_schedule_knows_its_step_after_the_draft() -> None:
    """Also at the token that comes after a draft that was kept."""
    model = drafted("llama", formula="0.4 * base + alpha * (expert - 0.3 * antiexpert)", alpha=1.0)
    alpha = [1.0, 0.3, 1.5, 0.1, 2.0, 0.5, 1.0, 0.2]
    speculative = WAYS["paced, no lookup"]()
    result = assert_same_text(model, ROW, speculative, alpha=alpha, max_new_tokens=40)
    assert result.speculation["drafter_passes"] > result.speculation["positions"]


def test_a_drafter_whose_windows_let_go_of_the_past_reads_no_guesses() -> None:
    """What it read in vain could not be forgotten before its draft is judged."""
    model = drafted("llama", "mistral")
    found = assert_same_text(model, CIRCLES, WAYS["all that is found"]()).speculation
    assert found["guessed"] == 0
    assert assert_same_text(model, CIRCLES, WAYS["lookup"]()).speculation["guessed"] > 0  # nothing else is cropped
