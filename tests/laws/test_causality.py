"""Law 2: changing token t changes no logits before t, and random data is never predicted better than its entropy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from tests.compositions import DIFFERENT, TOLERANCE, pair_params, plain_logits, random_composition
from tests.tiny import PAIRS, Pair, random_ids, tiny_model

LENGTH = 12


def _assert_causal(logits: torch.Tensor) -> None:
    """``logits`` [LENGTH + 1, LENGTH, V]: row t has another token at t than the last row, which is unchanged."""
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)  # [t, position]
    before = torch.arange(LENGTH)[None, :] < torch.arange(LENGTH)[:, None]
    assert changed[before].max() <= TOLERANCE[torch.float32], "an earlier position saw a later token"
    assert changed.diagonal().min() > DIFFERENT, "a position does not see its own token: this test could not fail"


@pytest.mark.parametrize("pair", pair_params())
def test_a_token_changes_nothing_before_it(pair: Pair) -> None:
    composition = random_composition(pair)
    ids = random_ids(1, LENGTH, seed=2).repeat(LENGTH + 1, 1)
    for t in range(LENGTH):
        ids[t, t] = (ids[t, t] - 4 + 17) % 93 + 4
    _assert_causal(plain_logits(composition, ids))


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama+gpt2", "qwen2_sliding+qwen3_wide"])
def test_an_augmenting_state_changes_nothing_before_it(name: str, attn_implementation: str) -> None:
    """The same by the bridges alone: only what m_A reads is changed, so the anchor's own attention cannot help."""
    composition = random_composition(PAIRS[name], attn_implementation=attn_implementation)
    (augmenting,) = composition.augmenting.values()

    def disturb(module: torch.nn.Module, args: Any, embedded: torch.Tensor) -> torch.Tensor:
        embedded = embedded.clone()
        for t in range(LENGTH):
            embedded[t, t] += 1.0
        return embedded

    handle = augmenting.get_input_embeddings().register_forward_hook(disturb)
    logits = plain_logits(composition, random_ids(1, LENGTH, seed=2).repeat(LENGTH + 1, 1))
    handle.remove()
    _assert_causal(logits)


# ---------------------------------------------------------------------------------------------- the entropy floor

SYMBOLS = 64
TEXT = 6
"""Short texts over many symbols: who sees the whole text knows the next token up to ln 6 at worst, not ln 64."""


def _loss_after_training(steps: int = 120) -> tuple[float, float]:
    """Train on i.i.d. uniform tokens; the loss on fresh ones (nats per token) and its standard error."""
    anchor = tiny_model("gpt2", seed=0, num_hidden_layers=2)
    augmenting = tiny_model("gpt2", seed=1, num_hidden_layers=2)
    composition = compose(
        anchor=anchor, augmenting=augmenting, connections=[(0, 1), (1, 2)], bridge_initializer_range=0.2, seed=0
    )
    parameters = [parameter for _, parameter in composition.composition_parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    generator = torch.Generator().manual_seed(0)

    def draw(batch: int) -> torch.Tensor:
        return torch.randint(4, 4 + SYMBOLS, (batch, TEXT), generator=generator)

    composition.train()
    for _ in range(steps):
        ids = draw(64)
        composition(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    composition.eval()
    ids = draw(1024)
    log_probs = plain_logits(composition, ids)[:, :-1].log_softmax(-1)
    losses = -log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1).flatten()
    return losses.mean().item(), losses.std().item() / math.sqrt(len(losses))


def test_random_tokens_are_never_predicted_below_their_entropy() -> None:
    loss, error = _loss_after_training()
    floor = math.log(SYMBOLS)
    assert floor - 4 * error <= loss, f"{loss:.3f} is below the entropy {floor:.3f}: the answer is being read"
    assert loss < floor + 0.5, "the composition did not train: this test could not fail"


def test_without_the_causal_mask_the_loss_falls_below_the_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measurement finds the fault of the published code, whose cross-attention has no causal mask."""

    def everything(self: CalmForCausalLM, name: str, inputs: dict[str, torch.Tensor], cache: Any) -> torch.Tensor:
        batch, new = inputs["input_ids"].shape
        return torch.ones(batch, 1, new, new, dtype=torch.bool)

    monkeypatch.setattr(CalmForCausalLM, "_bridge_mask", everything)
    loss, _ = _loss_after_training()
    assert loss < math.log(SYMBOLS) - 1.0
