"""Sampled texts of real models follow the law that plain forward passes give, and wrong rules of acceptance are caught.

A vocabulary of five tokens, so that every text of three tokens can be enumerated. The drafter is far from the target at
every prefix, the processors leave exact zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.decoding import acceptance, drafting, speculative
from lmcompose.decoding.counts import Statistics
from lmcompose.decoding.lookup import Lookup
from lmcompose.decoding.pace import Pace
from lmcompose.decoding.speculative import Speculation, speculate
from lmcompose.decoding.texts import Texts
from lmcompose.logits.speculation import DraftedPasses
from tests.decoding.chances import SURE, cells, p_value
from tests.tiny import tiny_model

VOCAB, LENGTH, END, PAD = 5, 3, 4, 0
PROMPTS = torch.tensor([[1, 2, 3], [3, 3, 0], [2, 0, 1]])
FORMULAS = {
    3: "1.2 * base + expert - antiexpert",
    4: "1.2 * base + expert - antiexpert + 0.7 * other",
}
SEEDS = {"base": 12, "expert": 5, "antiexpert": 4, "other": 10, "small": 5}
"""Chosen so that drafter and target are far apart at every prefix, which the first test asserts."""


@cache
def composition(terms: int, outside: bool = False) -> LogitForCausalLM:
    """The expert drafts, or a model outside of the formula does."""
    roles = [*("base", "expert", "antiexpert", "other")[:terms], *(["small"] if outside else [])]
    members = {
        role: tiny_model(
            "mistral" if SEEDS[role] % 2 else "llama", SEEDS[role], vocab_size=VOCAB, hidden_size=8,
            intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
            initializer_range=0.5,
        )
        for role in roles
    }  # fmt: skip
    return lmcompose.combine(FORMULAS[terms], members, drafter="small" if outside else "expert")


def processors() -> LogitsProcessorList:
    return LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(0.9), TopPLogitsWarper(0.95)]
    )


def prefixes(row: int, length: int) -> torch.Tensor:
    """All texts of `length` tokens after the prompt of a row: [VOCAB ** length, columns]."""
    texts = torch.tensor(list(product(range(VOCAB), repeat=length)), dtype=torch.long)
    return torch.cat([PROMPTS[row].expand(len(texts), -1), texts], dim=1)


@torch.no_grad()
def final(model: Any, ids: torch.Tensor, role: str | None = None) -> torch.Tensor:
    """The final distribution [rows, VOCAB] after `ids`, of the composition or of one member: plain forward passes."""
    output = model(ids, use_cache=False, output_member_scores=True)
    scores = output.logits if role is None else output.member_scores[role]
    return processors()(ids, scores[:, -1].float()).softmax(-1)


def law(model: LogitForCausalLM, row: int, end: int | None = None) -> torch.Tensor:
    """The probability of every text after the prompt of a row, in the order of `cells`; padded after `end`."""
    chance = torch.ones(1, dtype=torch.float64)
    for length in range(LENGTH):
        ids = prefixes(row, length)
        following = final(model, ids).double()
        if end is not None:
            ended = (ids[:, PROMPTS.shape[1] :] == end).any(dim=1)
            following[ended] = torch.eye(VOCAB, dtype=torch.float64)[PAD]
        chance = (chance[:, None] * following).flatten()
    return chance


def sample(
    model: LogitForCausalLM, prompts: torch.Tensor, times: int, length: int, end: int | None = None
) -> torch.Tensor:
    """Texts [times * batch, LENGTH] that are written over and over after prompts that are read once."""
    torch.manual_seed(1)
    criteria = StoppingCriteriaList([MaxLengthCriteria(prompts.shape[1] + LENGTH)])
    if end is not None:
        criteria.append(EosTokenCriteria(end))
    written = []
    with torch.no_grad():
        output = model(prompts, use_cache=True, logits_to_keep=1)
        filled = getattr(output, CACHE_ARGUMENT)
        filled.activate_past_recording()
        target = DraftedPasses(model, model.config.drafter, filled, prompts, {})
        for _ in range(times):
            texts = Texts(prompts, criteria, PAD)
            lengths = Speculation(draft_length=length, adaptive=False).lengths(bonus=target.bonus)
            speculate(target, texts, output.logits[:, -1], process=processors(), lengths=lengths, do_sample=True)
            rows = torch.full((len(prompts), LENGTH), PAD)
            rows[:, : texts.length - prompts.shape[1]] = texts.ids[:, prompts.shape[1] :]
            written.append(rows)
            target.crop(prompts.shape[1])
    return torch.cat(written)


def text_p_value(model: LogitForCausalLM, texts: torch.Tensor, batch: int, end: int | None = None) -> float:
    return p_value(
        [law(model, row, end) for row in range(batch)], [cells(texts[row::batch], VOCAB) for row in range(batch)]
    )


@pytest.mark.parametrize("terms", FORMULAS)
def test_the_models_put_acceptance_to_the_test(terms: int) -> None:
    model, zeros = composition(terms), 0
    for row, length in product(range(3), range(LENGTH)):
        target, draft = (final(model, prefixes(row, length), role) for role in (None, "expert"))
        distance = (target - draft).abs().sum(-1) / 2  # total variation
        assert 0.3 <= float(distance.min()) <= float(distance.max()) < 0.95
        zeros += int((target == 0).sum())
    assert zeros > 0


CASES = [(3, False, 1, None), (3, False, 3, None), (3, False, 3, END), (4, False, 3, None), (4, True, 1, None)]
"""Terms, whether the drafter is outside of the formula, rows of a batch, end-of-text token."""


def texts_of(terms: int, outside: bool, batch: int, end: int | None, times: int) -> float:
    """The p-value of `times` texts of each row."""
    model = composition(terms, outside)
    return text_p_value(model, sample(model, PROMPTS[:batch], times, 2 if outside else LENGTH, end), batch, end)


@pytest.mark.parametrize(("terms", "outside", "batch", "end"), CASES)
def test_texts_follow_the_law(terms: int, outside: bool, batch: int, end: int | None) -> None:
    assert texts_of(terms, outside, batch, end, times=400 if batch == 1 else 250) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("terms", FORMULAS)
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("end", [None, END])
def test_many_texts_follow_the_law(terms: int, outside: bool, batch: int, end: int | None) -> None:
    assert texts_of(terms, outside, batch, end, times=2_000) > 0.001


def resample_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused token is replaced by one of the target's rather than of the residual's."""
    monkeypatch.setattr(acceptance, "residual", lambda target, draft: target)


def never_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was drafted is accepted."""
    monkeypatch.setattr(speculative, "accept_sampled", lambda draft, *others: torch.full((len(draft),), draft.shape[1]))


WRONG: list[Callable[[pytest.MonkeyPatch], None]] = [resample_target, never_refuse]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_are_caught(wrong: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    assert texts_of(3, False, 3, None, times=350) < 1e-4


@pytest.mark.parametrize("terms", FORMULAS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_generate_follows_the_law(
    terms: int,
    batch: int,
    wrong: Callable[[pytest.MonkeyPatch], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of rows in one batch: together they seldom keep a token, so that this is about what is emitted then."""
    if wrong is not None:
        wrong(monkeypatch)
    model, rows = composition(terms), 12_000
    result = model.generate(
        PROMPTS[:batch], attention_mask=torch.ones_like(PROMPTS[:batch]), num_return_sequences=rows // batch,
        max_new_tokens=LENGTH, do_sample=True, temperature=0.9, top_p=0.95, top_k=0, repetition_penalty=1.2,
        eos_token_id=None, pad_token_id=PAD, return_dict_in_generate=True,
        speculative=Speculation(draft_length=2, adaptive=False),
    )  # fmt: skip
    assert result.speculation["drafted"] >= 2 * rows
    texts = result.sequences[:, PROMPTS.shape[1] :].view(batch, -1, LENGTH).transpose(0, 1).flatten(0, 1)
    chance = text_p_value(model, texts, batch)
    assert chance > 0.001 if wrong is None else chance < SURE


# ---------------------------------------------------------------------------------------------- how drafts come about


@cache
def shared() -> LogitForCausalLM:
    """Expert and antiexpert in one pass: a model of one vocabulary, with an adapter and without."""
    expert = get_peft_model(
        tiny_model("llama", 5, vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                   num_attention_heads=1, num_key_value_heads=1, initializer_range=0.5),
        LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in expert.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    base = composition(3).member("base")
    members = {"base": base, "expert": expert.eval(), "antiexpert": expert.get_base_model()}
    model = lmcompose.combine(FORMULAS[3], members, drafter="expert")
    assert len(model.passes) == 2
    return model


def sample_by(way: str, batch: int, times: int) -> tuple[torch.Tensor, Statistics]:
    """`sample` with drafts of another kind: "guesses", read by the drafter; "lookup" alone; "ahead" of the draft."""
    torch.manual_seed(2)
    model, prompts = shared(), PROMPTS[:batch]
    criteria = StoppingCriteriaList([MaxLengthCriteria(prompts.shape[1] + LENGTH)])
    total, written = Statistics(), []
    pace = Pace(1, cost=0.3, position=1e-9)
    lookup = None if way == "ahead" else Lookup(2, 2, adaptive=False)
    fixed = Speculation(draft_length=LENGTH, adaptive=False).lengths()
    with torch.no_grad():
        output = model(prompts, use_cache=True, logits_to_keep=1)
        filled = getattr(output, CACHE_ARGUMENT)
        target = DraftedPasses(model, None if way == "lookup" else "expert", filled, prompts, {})
        for _ in range(times):
            texts = Texts(prompts, criteria, PAD)
            counts = speculate(
                target, texts, output.logits[:, -1], process=processors(), lengths=pace if way == "ahead" else fixed,
                lookup=lookup, do_sample=True,
            )  # fmt: skip
            written.append(texts.ids[:, prompts.shape[1] :])
            for name in ("guessed", "right", "drafter_passes", "positions"):
                setattr(total, name, getattr(total, name) + getattr(counts, name))
            target.crop(prompts.shape[1])
    return torch.cat(written), total


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", ["guesses", "lookup", "ahead"])
def test_texts_follow_the_law_however_drafts_come_about(way: str, batch: int) -> None:
    texts, counts = sample_by(way, batch, times=250)
    assert text_p_value(shared(), texts, batch) > 0.001
    if way == "ahead":
        assert counts.drafter_passes > counts.positions + 30
    else:
        assert 0.1 < counts.right / counts.guessed < 0.9


def keep_every_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter takes whatever was looked up, and says that it drew it from its own distribution."""
    always = lambda draft, *others: torch.full((len(draft),), draft.shape[1])  # noqa: E731
    monkeypatch.setattr(drafting, "accept_sampled", always)


def forget_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token after a draft is the expert's and not the target's."""

    def wrong(self: DraftedPasses, ids: torch.Tensor) -> torch.Tensor:
        return self._run(self.draft_pass, ids, 1)["expert"].float()

    monkeypatch.setattr(DraftedPasses, "logits_ahead", wrong)


@pytest.mark.parametrize(
    ("way", "wrong"),
    [("guesses", keep_every_guess), ("lookup", resample_target),
     ("ahead", forget_the_drafter)],
)  # fmt: skip
def test_wrong_ways_are_caught(
    way: str, wrong: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    texts, _ = sample_by(way, 1, times=600)
    assert text_p_value(shared(), texts, 1) < 1e-4
