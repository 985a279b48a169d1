"""The states that predict an answer are those of the whole composition, and so are the gradients of the bridge."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from lmcompose.calm.model import CalmForCausalLM
from lmcompose.experiments.kv_arithmetic.answer_states import answer_states, can_be_short
from lmcompose.experiments.kv_arithmetic.composition import compose_members
from lmcompose.experiments.kv_arithmetic.members import (
    answer_loss,
    build_anchor,
    build_augmenting,
    with_full_vocabulary,
)
from lmcompose.experiments.kv_arithmetic.short_states import short_states
from lmcompose.experiments.kv_arithmetic.task import Kind
from tests.experiments.kv_arithmetic.test_run import MEMBER, TASK, TINY


def composed(**options: object) -> CalmForCausalLM:
    """A composition whose bridges say something, of members whose attention does."""
    anchor = with_full_vocabulary(build_anchor(TASK, MEMBER, 0), TASK)
    augmenting = with_full_vocabulary(build_augmenting(TASK, MEMBER, 1), TASK)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for model in (anchor, augmenting):
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    model = compose_members(TASK, anchor, augmenting, TINY.composition, 0, **options)
    for _, parameter in model.composition_parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return model


@pytest.mark.parametrize(
    ("options", "short"),
    [
        ({"connections": [(2, 0)]}, True),
        ({"connections": [(1, 0), (2, 1)]}, True),
        ({"connections": [(2, 0), (2, 2)]}, False),
        ({"connections": [(2, 0)], "unfreeze": {"anchor": [2]}}, False),
        ({"connections": [(2, 0)], "reads": "prompt"}, None),
    ],
)
def test_states_and_gradients_are_those_of_the_whole(options: dict[str, object], short: bool | None) -> None:
    model = composed(**options)
    last = model.anchor.transformer.h[-1]
    if short is not None:
        assert can_be_short(model) is short
    for kind in Kind:
        drawn = TASK.sample(np.random.default_rng(0), 5, 2, TASK.split[0])
        encoded, prompt = TASK.encode(drawn, kind)
        ids = torch.from_numpy(encoded)[:, :-1]
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        whole = model(ids, prompt_length=prompt, output_hidden_states=True, use_cache=False).hidden_states[-1]
        expected = whole[:, prompt - 1 :]
        found = answer_states(model, ids, prompt)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
        ours, theirs = (torch.autograd.grad((states * weights).sum(), trained) for states in (found, expected))
        assert sum(float(gradient.norm()) for gradient in theirs) > 1
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert model.anchor.transformer.h[-1] is last


def test_a_member_in_training_has_the_gradients_of_the_whole() -> None:
    """Of every parameter: layers, norms, positions, words and head."""
    model = build_anchor(TASK, MEMBER, 0).train()
    encoded, prompt = TASK.encode(TASK.sample(np.random.default_rng(0), 5, 2), Kind.NUM_MATH)
    ids = torch.from_numpy(encoded)
    gradients = []
    for short in (False, True):
        embeddings = model.transformer.wte(ids[:, :-1])
        run = partial(model.transformer, inputs_embeds=embeddings, use_cache=False)
        if short:
            states = short_states(model.transformer, prompt - 1, run)
        else:
            states = run().last_hidden_state[:, prompt - 1 :]
        loss = answer_loss(states, model.lm_head.weight, ids[:, prompt:], TASK.keys)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for (name, _), one, other in zip(model.named_parameters(), *gradients, strict=True):
        assert one.abs().max() > 0, name
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)


def test_a_model_of_one_layer_runs_whole() -> None:
    """Its last layer is its first, where the embeddings are written."""
    one = dataclasses.replace(MEMBER, layers=1)
    members = [with_full_vocabulary(build_anchor(TASK, one, seed), TASK) for seed in (0, 1)]
    assert not can_be_short(compose_members(TASK, *members, TINY.composition, 0, connections=[(1, 0)]))


def test_a_failing_pass_leaves_the_anchor_whole() -> None:
    model = composed(connections=[(2, 0)])
    layers = list(model.anchor.transformer.h)
    with pytest.raises(IndexError):
        answer_states(model, torch.full((1, 4), 10_000), 2)
    assert list(model.anchor.transformer.h) == layers
