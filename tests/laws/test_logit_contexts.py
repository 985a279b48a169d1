"""Laws 3 and 4 where members read different texts before the tokens that they all go on with.

Prompts of different lengths per member, in one left-padded batch, give the same tokens as one by one; and the
arithmetic is that of plain models which each read their own text.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import LogitForCausalLM, combine, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import CacheError, ConfigurationError
from tests.compositions import DIFFERENT, assert_same_logits, plain_logits
from tests.logit_compositions import TRIOS, Trio, antiexpert_of, base_of, composition, expert_of, trio_params
from tests.tiny import PAD_ID, padded, random_ids, tiny_model, tiny_tokenizer

NEW = 7
LEADER = [random_ids(1, length, seed=length)[0] for length in (6, 11, 8)]
EXPERT = [random_ids(1, length, seed=40 + length)[0] for length in (9, 3, 14)]
ANTIEXPERT = [random_ids(1, length, seed=60 + length)[0] for length in (5, 12, 1)]
NAMES = ("llama+gpt2", "gemma3+llama-gemma3", "mistral+bloom", "falcon+mpt", "gemma2+mistral", "opt+falcon-llama")


def _inputs(rows: list[int]) -> dict[str, torch.Tensor]:
    """The three members' own prompts for some rows, as `model.prepare` would give them."""
    ids, mask, _ = padded([LEADER[row] for row in rows], "left")
    longest = max(len(part[row]) for part in (EXPERT, ANTIEXPERT) for row in rows)
    members = torch.full((len(rows), 2, longest), 7)
    members_mask = torch.zeros_like(members)
    for index, row in enumerate(rows):
        for member, part in enumerate((EXPERT[row], ANTIEXPERT[row])):
            members[index, member, longest - len(part) :] = part
            members_mask[index, member, longest - len(part) :] = 1
    return {
        "input_ids": ids * mask,  # the bigrams of generated padding would be forbidden too
        "attention_mask": mask,
        "member_input_ids": members,
        "member_attention_mask": members_mask,
    }


def _decode(model: LogitForCausalLM, inputs: dict[str, torch.Tensor], **settings: Any) -> Any:
    torch.manual_seed(5)
    defaults: dict[str, Any] = {
        "max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD_ID,
        "no_repeat_ngram_size": 2, "output_scores": True, "return_dict_in_generate": True,
    }  # fmt: skip
    return model.generate(**inputs, **(defaults | settings))


def _new(result: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    tokens: torch.Tensor = result.sequences[:, inputs["input_ids"].shape[1] :]
    return tokens


@cache
def _model(name: str) -> LogitForCausalLM:
    return composition(TRIOS[name])


@cache
def _by_hand(name: str, row: int, alpha: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy decoding of one row with three plain models that each read their own text: new tokens and scores."""
    trio = TRIOS[name]
    members = [base_of(trio), expert_of(trio), antiexpert_of(trio)]
    texts = [LEADER[row], EXPERT[row], ANTIEXPERT[row]]
    tokens: list[int] = []
    scores = []
    for _ in range(NEW):
        base, expert, antiexpert = (
            plain_logits(member, torch.cat([text, torch.tensor(tokens, dtype=torch.long)])[None])[0, -1]
            for member, text in zip(members, texts, strict=True)
        )
        score = base + alpha * (expert - antiexpert)
        whole = [*LEADER[row].tolist(), *tokens]  # generate forbids bigrams of the leader's text
        for first, second in itertools.pairwise(whole):
            if first == whole[-1]:
                score[second] = -torch.inf
        scores.append(score)
        tokens.append(int(score.argmax()))
    return torch.tensor(tokens), torch.stack(scores)


@pytest.mark.parametrize("trio", trio_params(NAMES, NAMES[:4]))
def test_a_batch_of_own_prompts_is_the_formula_by_hand(trio: Trio) -> None:
    """Cached, in one left-padded batch of prompts of nine lengths, token for token and score for score."""
    inputs = _inputs([0, 1, 2])
    result = _decode(_model(trio.name), inputs)
    for row in range(3):
        tokens, scores = _by_hand(trio.name, row)
        assert torch.equal(_new(result, inputs)[row], tokens)
        got = torch.stack([step[row] for step in result.scores])
        assert torch.equal(got.isfinite(), scores.isfinite())
        assert_same_logits(got[got.isfinite()], scores[scores.isfinite()])
    shared = _decode(_model(trio.name), {name: part for name, part in inputs.items() if not name.startswith("member")})
    assert not torch.equal(shared.sequences, result.sequences), "the contexts do nothing"


@pytest.mark.parametrize("trio", trio_params(NAMES, NAMES[:2]))
def test_every_way_to_decode_gives_the_same_tokens(trio: Trio) -> None:
    model, inputs = _model(trio.name), _inputs([0, 1, 2])
    expected = _decode(model, inputs).sequences
    ways: list[dict[str, Any]] = [{"use_cache": False}, {"prefill_chunk_size": 4}, {"prefill_chunk_size": 1}]
    if trio.static_cache:
        ways += [{"cache_implementation": "static"}, {"cache_implementation": "static", "prefill_chunk_size": 4}]
    for settings in ways:
        assert torch.equal(_decode(model, inputs, **settings).sequences, expected), settings
    for settings in ({"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2}):
        got = _decode(model, inputs, **settings).sequences
        assert torch.equal(got, _decode(model, inputs, use_cache=False, **settings).sequences)
    for row in range(2):
        alone = _inputs([row])
        tokens = _by_hand(trio.name, row)[0]
        assert torch.equal(_new(_decode(model, alone), alone)[0], tokens)
        assistant = tiny_model("llama", seed=9, num_hidden_layers=2)
        for settings in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
            assert torch.equal(_new(_decode(model, alone, **settings), alone)[0], tokens), settings


def test_alpha_per_request_and_per_step_with_contexts() -> None:
    name, inputs = "llama+gpt2", _inputs([0, 1, 2])
    model = _model(name)
    got = _new(_decode(model, inputs, alpha=torch.tensor([1.0, 0.0, 2.0])), inputs)
    for row, alpha in enumerate((1.0, 0.0, 2.0)):
        assert torch.equal(got[row], _by_hand(name, row, alpha)[0])
    schedule = [1.0, 0.0, 2.0]
    expected = _decode(model, inputs, alpha=schedule).sequences
    for settings in ({"use_cache": False}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}):
        assert torch.equal(_decode(model, inputs, alpha=schedule, **settings).sequences, expected)
    first = [_by_hand(name, row)[0][0] for row in range(3)]
    assert expected[:, inputs["input_ids"].shape[1]].tolist() == first


def test_scoring_a_continuation() -> None:
    """One forward over `[context | tail]`: composed from the contexts' last position on, the leader alone before."""
    name = "llama+gpt2"
    trio, model, inputs = TRIOS[name], _model(name), _inputs([0, 1, 2])
    tail, length = random_ids(3, 4, seed=90), inputs["input_ids"].shape[1]
    call = inputs | {
        "input_ids": torch.cat([inputs["input_ids"], tail], dim=1),
        "attention_mask": torch.cat([inputs["attention_mask"], torch.ones_like(tail)], dim=1),
    }
    with torch.no_grad():
        output = model(**call, context_length=length, output_member_scores=True)
    assert output.logits.shape[1] == length + 4
    assert output.member_scores["expert"].shape[1] == 5
    for row in range(3):
        texts = [torch.cat([part[row], tail[row]])[None] for part in (LEADER, EXPERT, ANTIEXPERT)]
        base, expert, antiexpert = (
            plain_logits(build(trio), text)[0]
            for build, text in zip((base_of, expert_of, antiexpert_of), texts, strict=True)
        )
        assert_same_logits(output.logits[row, -5:], base[-5:] + expert[-5:] - antiexpert[-5:])
        assert_same_logits(output.logits[row, length - len(LEADER[row]) : -5], base[:-5])
    with torch.no_grad():
        for keep in (1, 3, 7):
            kept = model(**call, context_length=length, logits_to_keep=keep).logits
            assert_same_logits(kept, output.logits[:, -keep:])


def test_the_next_turn_of_a_conversation_goes_on_with_the_cache() -> None:
    """The same contexts again, and where they ended in the leader's text; only new tokens are read."""
    model, inputs = _model("llama+gpt2"), _inputs([1])
    first = _decode(model, inputs)
    more = torch.cat([first.sequences, random_ids(1, 3, seed=8)], dim=1)
    turn = inputs | {"input_ids": more, "attention_mask": torch.ones_like(more)}
    lengths: list[int] = []
    handle = (
        model.member("expert")
        .get_input_embeddings()
        .register_forward_hook(lambda module, args, output: lengths.append(output.shape[1]))
    )
    length = inputs["input_ids"].shape[1]
    got = _decode(model, turn, context_length=length, **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]})
    handle.remove()
    assert torch.equal(got.sequences, _decode(model, turn, context_length=length, use_cache=False).sequences)
    assert lengths[0] == 4


def test_members_with_the_leaders_prompt_as_their_context_change_nothing() -> None:
    """Contexts that are the leader's own text: the same tokens as without any."""
    model, inputs = _model("gemma2+mistral"), _inputs([0, 1, 2])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    own = {
        "member_input_ids": torch.stack([ids, ids], dim=1),
        "member_attention_mask": torch.stack([mask, mask], dim=1),
    }
    plain = _decode(model, {"input_ids": ids, "attention_mask": mask})
    assert torch.equal(_decode(model, inputs | own).sequences, plain.sequences)


# ------------------------------------------------------------------------------- one live model in two roles


def _greedy_by_hand(score: Any, new: int = NEW) -> list[int]:
    tokens: list[int] = []
    for _ in range(new):
        tokens.append(int(score(torch.tensor(tokens, dtype=torch.long)).argmax()))
    return tokens


def _static_cache_works(plain: PreTrainedModel, ids: torch.Tensor) -> bool:
    """Whether the plain model decodes an unpadded text so: BLOOM does not in transformers 5.19, and does in 5.24."""
    try:
        plain.generate(ids, max_new_tokens=2, do_sample=False, cache_implementation="static")  # type: ignore[operator]
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("arch", ["gemma3", "bloom"])
def test_context_aware_decoding_with_one_live_model(arch: str) -> None:
    """(1 + alpha) * with_context - alpha * without_context (arXiv 2305.14739), the weights in memory once."""
    live, twin = tiny_model(arch), tiny_model(arch)
    model = combine("context_aware", {"with_context": live, "without_context": live})
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in twin.parameters())
    question, context = random_ids(1, 5, seed=3)[0], random_ids(1, 9, seed=4)[0]

    def score(tokens: torch.Tensor) -> torch.Tensor:
        informed = plain_logits(twin, torch.cat([context, question, tokens])[None])[0, -1]
        bare = plain_logits(twin, torch.cat([question, tokens])[None])[0, -1]
        return 1.5 * informed - 0.5 * bare

    inputs = {
        "input_ids": torch.cat([context, question])[None],
        "member_input_ids": question[None, None],
        "member_attention_mask": torch.ones_like(question)[None, None],
    }
    expected = _greedy_by_hand(score)
    ways: list[dict[str, Any]] = [{}, {"use_cache": False}, {"prefill_chunk_size": 3}]
    if _static_cache_works(twin, question[None]):
        ways.append({"cache_implementation": "static"})
    for settings in ways:
        got = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=None, **settings)
        assert got[0, 14:].tolist() == expected
    nothing = torch.tensor([], dtype=torch.long)
    informed = plain_logits(twin, torch.cat([context, question])[None])[0, -1]
    assert (score(nothing) - informed).abs().max() > DIFFERENT


def test_guidance_with_one_live_model_and_a_negative_prompt() -> None:
    """log p_uncond + gamma * (log p_cond - log p_uncond) (arXiv 2306.17806)."""
    live, twin = tiny_model("qwen2"), tiny_model("qwen2")
    model = combine("guidance", {"conditional": live, "unconditional": live})
    prompt, negative = random_ids(1, 6, seed=3)[0], random_ids(1, 2, seed=4)[0]

    def score(tokens: torch.Tensor) -> torch.Tensor:
        wanted, unwanted = (
            plain_logits(twin, torch.cat([text, tokens])[None])[0, -1].log_softmax(-1) for text in (prompt, negative)
        )
        return unwanted + 1.5 * (wanted - unwanted)

    got = model.generate(
        prompt[None],
        member_input_ids=negative[None, None],
        member_attention_mask=torch.ones(1, 1, 2, dtype=torch.long),
        max_new_tokens=NEW, do_sample=False, eos_token_id=None,
    )  # fmt: skip
    assert got[0, 6:].tolist() == _greedy_by_hand(score)


def test_one_live_model_in_two_contexts_beside_a_leader_is_one_pass() -> None:
    """Two roles that differ in their contexts alone run as one batch of 2B rows, and decode as in two passes."""
    small = tiny_model("gpt2", seed=1)
    model = proxy_tune(tiny_model("llama"), small, small)
    apart = proxy_tune(tiny_model("llama"), tiny_model("gpt2", seed=1), tiny_model("gpt2", seed=1))
    assert model.passes == [("base",), ("expert", "antiexpert")]
    inputs = _inputs([0, 1, 2])
    rows: list[int] = []
    small.get_input_embeddings().register_forward_hook(lambda module, args, output: rows.append(output.shape[0]))
    for settings in (
        {}, {"use_cache": False}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"},
        {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2},
    ):  # fmt: skip
        rows.clear()
        got = _decode(model, inputs, **settings).sequences
        assert torch.equal(got, _decode(apart, inputs, **settings).sequences), settings
        assert len(rows) == NEW
    separate = proxy_tune(tiny_model("llama"), small, small, share_passes=False)
    assert separate.passes == [("base",), ("expert",), ("antiexpert",)]
    assert torch.equal(_decode(separate, inputs).sequences, _decode(apart, inputs).sequences)


# ------------------------------------------------------------------------------- prepare


def _with_tokenizers(**templates: str) -> LogitForCausalLM:
    trio = TRIOS["llama+gpt2"]
    members = {}
    for role, build in (("base", base_of), ("expert", expert_of), ("antiexpert", antiexpert_of)):
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = templates.get(role, tokenizer.chat_template)
        members[role] = (build(trio), tokenizer)
    return combine("base + expert - antiexpert", members)


QUESTION = [{"role": "user", "content": "w1 w2 w3"}]
OTHER_TEMPLATE = "{% for m in messages %}{{ m['content'] }} = {% endfor %}"


def test_each_member_reads_its_own_rendering_of_one_conversation() -> None:
    """Its own template, its own system prompt, its own context; decoded as plain models that read these texts."""
    model = _with_tokenizers(expert=OTHER_TEMPLATE)
    prompts = [QUESTION, [{"role": "user", "content": "w9"}]]
    inputs = model.prepare(prompts, system={"expert": "w50 w51"}, context={"antiexpert": ["w60 w61 w62", "w63"]})
    tokenizer = tiny_tokenizer()
    written = {
        "base": ["user : w1 w2 w3 </s> assistant :", "user : w9 </s> assistant :"],
        "expert": ["w50 w51 = w1 w2 w3 =", "w50 w51 = w9 ="],
        "antiexpert": ["user : w60 w61 w62 w1 w2 w3 </s> assistant :", "user : w63 w9 </s> assistant :"],
    }
    result = model.generate(**inputs, max_new_tokens=5, do_sample=False, eos_token_id=None)
    trio = TRIOS["llama+gpt2"]
    for row in range(2):
        texts = {role: torch.tensor(tokenizer(texts[row])["input_ids"]) for role, texts in written.items()}

        def score(tokens: torch.Tensor, texts: Any = texts) -> torch.Tensor:
            base, expert, antiexpert = (
                plain_logits(build(trio), torch.cat([texts[role], tokens])[None])[0, -1]
                for role, build in (("base", base_of), ("expert", expert_of), ("antiexpert", antiexpert_of))
            )
            return base + expert - antiexpert

        assert result[row, inputs["input_ids"].shape[1] :].tolist() == _greedy_by_hand(score, new=5)


def test_what_all_members_read_alike_takes_no_contexts() -> None:
    inputs = _with_tokenizers().prepare(["w1 w2", QUESTION])
    assert inputs.keys() == {"input_ids", "attention_mask"}


# ------------------------------------------------------------------------------- refusals


def test_contexts_that_do_not_fit_are_refused_before_decoding() -> None:
    model, inputs = _model("llama+gpt2"), _inputs([0, 1, 2])

    def refused(match: str, **changes: Any) -> None:
        ran: list[int] = []
        handle = model.leader.register_forward_pre_hook(lambda module, args: ran.append(1))
        with pytest.raises(ConfigurationError, match=match):
            _decode(model, inputs | changes)
        handle.remove()
        assert not ran, "something was computed before the refusal"

    ids, mask = inputs["member_input_ids"], inputs["member_attention_mask"]
    refused(r"\[3, 2, \.\.\.\] for the members \['expert', 'antiexpert'\]", member_input_ids=ids[:2])
    refused("model.prepare", member_input_ids=ids[:, :1], member_attention_mask=mask[:, :1])
    refused("model.prepare", member_input_ids=ids[:, 0], member_attention_mask=mask[:, 0])
    refused("need member_attention_mask", member_attention_mask=None)
    refused("padded on the left", member_attention_mask=mask.flip(-1))
    holed = mask.clone()
    holed[0, 0, -3] = 0
    refused("padded on the left", member_attention_mask=holed)
    refused("empty", member_attention_mask=mask.index_fill(0, torch.tensor([1]), 0))
    refused("context_length = 99", context_length=99)
    for wrong in (0, -1, 1.5, True):
        refused("is no number of columns", context_length=wrong)


def test_a_forward_pass_refuses_contexts_too() -> None:
    model, inputs = _model("llama+gpt2"), _inputs([0, 1, 2])
    with pytest.raises(ConfigurationError, match="need member_attention_mask and context_length"):
        model(**inputs)
    with pytest.raises(ConfigurationError, match="padded on the left"):
        model(**(inputs | {"member_attention_mask": inputs["member_attention_mask"].flip(-1)}), context_length=11)
    with pytest.raises(ConfigurationError, match="number of last positions"):
        model(**inputs, context_length=11, logits_to_keep=torch.tensor([0]))
    with torch.no_grad():
        state = model(**inputs, context_length=11)[CACHE_ARGUMENT]
    more = {"input_ids": torch.full((3, 1), 5), CACHE_ARGUMENT: state}
    with pytest.raises(CacheError, match="the same member_input_ids at every call"):
        model(**more)
    with pytest.raises(CacheError, match="the same member_input_ids at every call"):
        model(**(inputs | _inputs([2, 2, 2]) | more), context_length=7)
