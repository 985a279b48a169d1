"""The laws where an augmenting model reads the prompt alone: law 4 is exempt from the refresh at decoded tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CompileConfig

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.calm.prompts import prompt_of
from lmcompose.errors import CacheError, ConfigurationError
from lmcompose.evaluation.scoring import composed_scores
from lmcompose.training.packing import IGNORED, Collator, packed_row
from tests.compositions import (
    DIFFERENT,
    anchor_of,
    assert_same_logits,
    augmenting_of,
    plain_logits,
    random_composition,
    untrained_composition,
)
from tests.tiny import PAIRS, Pair, padded, random_ids, tiny_model, tiny_tokenizer, valid_rows
from tests.tokenizers import family

PAIR_PARAMS = [
    pytest.param(PAIRS[name], id=name) for name in ("llama+gpt2", "gemma3+llama", "qwen2_sliding+qwen3_wide")
]
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]
PROMPTS = (3, 8, 10)
"""How much of each row is prompt."""

SETTINGS: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None, "no_repeat_ngram_size": 2}


def _reader(pair: Pair = PAIRS["llama+gpt2"], *arguments: Any, **keywords: Any) -> CalmForCausalLM:
    return random_composition(pair, *arguments, reads="prompt", **keywords)


def _runs(model: CalmForCausalLM) -> list[int]:
    """How many columns the augmenting model is given, pass by pass."""
    lengths: list[int] = []
    (augmenting,) = model.augmenting.values()
    augmenting.get_input_embeddings().register_forward_hook(lambda module, args, out: lengths.append(out.shape[1]))
    return lengths


def _slow(pair: Pair, row: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits [length, vocabulary] by the definition: position t sees m_A's states up to itself, and none of the answer.

    A composition that reads every token, whose bridges have another mask: lower-triangular, and without the columns
    of the answer.
    """
    model = random_composition(pair)

    def cut(name: str, inputs: dict[str, torch.Tensor], cache: Any) -> torch.Tensor:
        length = inputs["input_ids"].shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        allowed[:, prompt:] = False
        return allowed[None, None]

    model._bridge_mask = cut  # type: ignore[method-assign]
    return plain_logits(model, row[None])[0]


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_a_whole_prompt_is_read_as_a_text_and_later_tokens_are_not(pair: Pair) -> None:
    model, text = _reader(pair), random_composition(pair)
    row = ROWS[1]
    assert_same_logits(plain_logits(model, row[None]), plain_logits(text, row[None]))
    lengths = _runs(model)
    logits = plain_logits(model, row[None], prompt_length=6)[0]
    assert lengths == [6]
    assert_same_logits(logits, _slow(pair, row, 6))
    assert_same_logits(logits[:6], plain_logits(text, row[None])[0, :6])
    assert (logits[6:] - plain_logits(text, row[None])[0, 6:]).abs().amax(dim=-1).min() > DIFFERENT


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_padding_and_prompts_of_several_lengths(pair: Pair, attn_implementation: str) -> None:
    model = _reader(pair, attn_implementation=attn_implementation)
    alone = [plain_logits(model, row[None], prompt_length=n)[0] for row, n in zip(ROWS, PROMPTS, strict=True)]
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        prompts = (positions < torch.tensor(PROMPTS)[:, None]) & mask.bool()
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions, prompt_mask=prompts)
        for got, expected in zip(valid_rows(logits, mask), alone, strict=True):
            assert_same_logits(got, expected)


def test_nothing_later_is_seen() -> None:
    """Law 2, in the prompt too: a prompt position sees m_A's states up to itself."""
    length, model = 12, _reader()
    ids = random_ids(1, length, seed=2).repeat(length + 1, 1)
    for t in range(length):
        ids[t, t] = (ids[t, t] - 4 + 17) % 93 + 4
    logits = plain_logits(model, ids, prompt_length=7)
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)
    assert changed[torch.arange(length)[None, :] < torch.arange(length)[:, None]].max() < 5e-5
    assert changed.diagonal().min() > DIFFERENT


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_generation_is_recomputation_with_the_same_prompt(pair: Pair) -> None:
    model = _reader(pair)
    ids, mask, _ = padded(ROWS, "left")
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    lengths = _runs(model)
    got = model.generate(**batch, **SETTINGS)
    assert lengths == [14], "the prompt is read once, and no token after it"
    full = torch.cat([mask, torch.ones(3, SETTINGS["max_new_tokens"], dtype=mask.dtype)], dim=1)
    scores = plain_logits(model, got, attention_mask=full, prompt_length=14)
    arguments = {"output_logits": True, "return_dict_in_generate": True}
    steps = torch.stack(model.generate(**batch, **SETTINGS, **arguments).logits, dim=1)
    assert_same_logits(steps, scores[:, 13:-1])
    read = random_composition(pair).generate(**batch, **SETTINGS, **arguments)
    assert (torch.stack(read.logits, dim=1)[:, 2:] - steps[:, 2:]).abs().max() > DIFFERENT, "it could not fail"
    lengths.clear()
    chunks = model.generate(**batch, **SETTINGS, prefill_chunk_size=4)
    assert lengths == [4, 4, 4, 2]
    assert torch.equal(chunks, got)
    for other in ({"use_cache": False}, {"cache_implementation": "static"}, {"prompt_length": 14}):
        assert torch.equal(model.generate(**batch, **SETTINGS, **other), got), other
    beams = model.generate(**batch, **SETTINGS, num_beams=3, num_return_sequences=2, use_cache=False)
    assert torch.equal(model.generate(**batch, **SETTINGS, num_beams=3, num_return_sequences=2), beams)
    for row, generated in zip(ROWS, got[:, 14:], strict=True):
        assert torch.equal(model.generate(row[None], **SETTINGS)[0, len(row) :], generated)


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_assisted_decoding_and_shortened_caches(pair: Pair) -> None:
    model, row = _reader(pair), ROWS[1][None]
    expected = model.generate(row, **SETTINGS)
    assert torch.equal(model.generate(row, prompt_lookup_num_tokens=3, **SETTINGS), expected)
    assert torch.equal(model.generate(row, assistant_model=anchor_of(pair), **SETTINGS), expected)
    bare = anchor_of(pair)
    assert torch.equal(bare.generate(row, assistant_model=model, **SETTINGS), bare.generate(row, **SETTINGS))
    whole = plain_logits(model, row, prompt_length=5)
    for left in (9, 3):  # into the answer, and into the prompt
        cache = model.new_cache()
        cache.activate_past_recording()  # as assisted decoding does, for layers with a window
        with torch.no_grad():
            model(row[:, :11], prompt_length=5, **{CACHE_ARGUMENT: cache})
            cache.crop(left - 11)
            rest = model(row[:, left:], prompt_length=5, **{CACHE_ARGUMENT: cache}).logits
        assert_same_logits(rest, whole[:, left:])


def test_an_answer_is_scored_as_it_is_generated() -> None:
    model, row = _reader(), ROWS[1][None]
    steps = model.generate(row, output_logits=True, return_dict_in_generate=True, **SETTINGS)
    read = steps.sequences[:, :-1]
    inputs = {"input_ids": read, "attention_mask": torch.ones_like(read)}
    got = composed_scores(model, inputs, SETTINGS["max_new_tokens"])
    assert_same_logits(got.composition, torch.cat(steps.logits))
    assert_same_logits(got.base, plain_logits(anchor_of(PAIRS["llama+gpt2"]), read)[0, 13:])


def test_a_compiled_static_cache_decodes_the_same_in_one_graph() -> None:
    compile_config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    compile_config._compile_all_devices = True
    model, row = _reader(), ROWS[1][None]
    torch._dynamo.reset()
    captured = torch._dynamo.utils.counters["stats"]
    captured.clear()
    got = model.generate(row, cache_implementation="static", compile_config=compile_config, **SETTINGS)
    assert torch.equal(got, model.generate(row, **SETTINGS))
    assert captured["unique_graphs"] == 1, "the prompt is read outside of the graph, and every token within one"
    torch._dynamo.reset()


def test_a_cache_holds_one_prompt() -> None:
    model, row = _reader(), ROWS[1][None]
    cache = model.generate(row, return_dict_in_generate=True, **SETTINGS)
    more = torch.cat([cache.sequences, random_ids(1, 4, seed=8)], dim=1)
    with pytest.raises(CacheError, match=r"a prompt of 14 tokens and its answer, and now the prompt has 25"):
        model.generate(more, **{CACHE_ARGUMENT: cache[CACHE_ARGUMENT]}, **SETTINGS)
    cache = model.new_cache()
    with torch.no_grad():
        with model.without("augmenting"):
            model(row, **{CACHE_ARGUMENT: cache})
        with pytest.raises(CacheError, match="left out"):
            model(row[:, :1], **{CACHE_ARGUMENT: cache})


# ------------------------------------------------------------------------------------------------ training


def _example(row: torch.Tensor, prompt: int) -> tuple[np.ndarray, np.ndarray]:
    labels = row.clone()
    labels[:prompt] = IGNORED
    return row.numpy(), labels.numpy()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_the_loss_is_that_of_every_text_with_its_own_prompt(pair: Pair, packed: bool) -> None:
    examples = [_example(row, prompt) for row, prompt in zip(ROWS, PROMPTS, strict=True)]
    rows = [packed_row(examples)] if packed else [{"input_ids": ids, "labels": labels} for ids, labels in examples]
    total, count = 0.0, 0
    for row, prompt in zip(ROWS, PROMPTS, strict=True):
        logits = _slow(pair, row, prompt)[prompt - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(logits, row[prompt:], reduction="sum"))
        count += len(row) - prompt
    model = _reader(pair).train()
    batch = Collator(0)(rows)
    loss = model(**batch).loss
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-5)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.composition_parameters()}
    model.zero_grad()
    prompts = prompt_of(batch["labels"], batch.get("attention_mask"), batch.get("position_ids"))
    model(**batch, prompt_mask=prompts).loss.backward()
    for name, parameter in model.composition_parameters():
        assert torch.equal(parameter.grad, gradients[name])
    text = random_composition(pair).train()
    assert abs(float(text(**batch).loss.detach()) - float(loss.detach())) > DIFFERENT, "it could not fail"


def test_prompts_are_found_by_the_labels() -> None:
    I = IGNORED  # noqa: E741
    labels = torch.tensor([[I, I, 5, I, 6, I], [7, 8, 9, 9, I, I], [I, I, 5, 6, 7, 8]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
    got = prompt_of(labels, mask).int().tolist()
    assert got == [[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    packed = torch.tensor([[I, I, 5, I, 6, 7, I, I]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]])
    assert prompt_of(packed, None, positions).int().tolist() == [[1, 1, 0, 1, 0, 0, 1, 1]]


def test_the_evaluation_loss_is_the_training_loss(tmp_path: Path) -> None:
    from tests.training.test_trainer import Documents, trainer_of

    for packed in (False, True):
        held_out = Documents(6, seed=5, packed=packed)
        model = _reader()
        everything = Collator(0)(held_out.rows)
        with torch.no_grad():
            expected = float(model(**everything).loss)
        trainer = trainer_of(model, tmp_path, eval_dataset=held_out, per_device_eval_batch_size=6)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


# ------------------------------------------------------------------------------------ saved, several, refused


def test_untrained_it_is_the_anchor_and_saved_is_loaded(tmp_path: Path) -> None:
    pair, row = PAIRS["llama+gpt2"], ROWS[1][None]
    untrained = untrained_composition(pair, reads={"augmenting": "prompt"})
    assert torch.equal(plain_logits(untrained, row, prompt_length=4), plain_logits(anchor_of(pair), row))
    model = _reader(pair)
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=anchor_of(pair), augmenting=augmenting_of(pair))
    assert loaded.config.reads == {"augmenting": "prompt"}
    assert torch.equal(loaded.generate(row, **SETTINGS), model.generate(row, **SETTINGS))
    assert '"augmenting": "prompt"' in (tmp_path / "saved" / "README.md").read_text()


def test_one_reads_the_prompt_and_another_the_text() -> None:
    from tests.compositions import randomise

    members = {"once": tiny_model("gpt2", seed=1), "always": tiny_model("opt", seed=2)}
    model = randomise(compose(tiny_model("llama"), members, reads={"once": "prompt"}))
    row = ROWS[1][None]
    lengths: dict[str, list[int]] = {name: [] for name in members}
    for name, member in members.items():
        member.get_decoder().register_forward_hook(
            lambda module, args, kwargs, out, name=name: lengths[name].append(kwargs["input_ids"].shape[1]),
            with_kwargs=True,
        )
    got = model.generate(row, **SETTINGS)
    assert lengths == {"once": [14], "always": [14] + [1] * 6}
    assert torch.equal(model.generate(row, use_cache=False, **SETTINGS), got)
    assert torch.equal(model.generate(row, prompt_lookup_num_tokens=3, **SETTINGS), got)


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("promt", "'promt' is none of text, prompt. Did you mean 'prompt'"),
        ({"augmentin": "prompt"}, "'augmentin' is none of augmenting. Did you mean"),
        ({"anchor": "prompt"}, "'anchor' is none of augmenting"),
    ],
)
def test_what_cannot_be_read_is_refused(reads: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compose(tiny_model("llama"), tiny_model("gpt2", seed=1), reads=reads)


def test_where_it_would_not_know_the_prompt_it_is_refused() -> None:
    model = _reader()
    with pytest.raises(ConfigurationError, match="Compose it anew with reads='text'"):
        compose(model, tiny_model("gpt2", seed=4))
    with pytest.raises(ConfigurationError, match="prompt_mask is for whole texts"):
        model(ROWS[1][None], labels=ROWS[1][None], use_cache=True)
    with pytest.raises(ConfigurationError, match="CalmTrainer"):
        model.base_model(ROWS[1][None])
    foreign = family("qwen")
    with pytest.raises(ConfigurationError, match="has a tokenizer of its own"):
        compose(
            (tiny_model("llama"), tiny_tokenizer()),
            (tiny_model("gpt2", seed=3, vocab_size=len(foreign)), foreign),
            reads="prompt",
        )
