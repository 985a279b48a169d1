"""LoRA with as many parameters as something else has: the count is peft's own, and the rank is the nearest."""

import pytest
import torch
from transformers import AutoConfig

from lmcompose.architecture import meta_model
from lmcompose.training.lora import lora_shapes, matching_rank, with_lora
from tests.tiny import random_ids, save_tiny, tiny_model


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gpt_neox", "gemma3"])
@pytest.mark.parametrize("wanted", [1, 3000, 20_000])
def test_the_rank_comes_as_near_as_whole_ranks_can(arch: str, wanted: int) -> None:
    model = tiny_model(arch)
    rank = matching_rank(model, wanted)
    per_rank = sum(rows * columns for rows, columns in lora_shapes(model, 1))
    tuned = with_lora(model, rank, seed=0)
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == rank * per_rank
    assert abs(rank * per_rank - wanted) <= per_rank / 2 or rank == 1
    assert sorted(tuple(parameter.shape) for parameter in trained) == sorted(lora_shapes(tiny_model(arch), rank))
    head = tuned.get_base_model().get_output_embeddings()
    assert head is tuned.get_base_model().get_output_embeddings()
    assert not any("lora" in name for name, _ in head.named_parameters())


def test_the_configuration_alone_tells_the_rank(tmp_path) -> None:
    config = AutoConfig.from_pretrained(save_tiny(tmp_path, "llama"))
    assert matching_rank(meta_model(config), 5000) == matching_rank(tiny_model("llama"), 5000)


def test_untrained_it_is_the_model_and_the_seed_decides_how_it_begins() -> None:
    ids = random_ids(2, 7)
    expected = tiny_model("llama")(ids).logits
    begins = []
    for seed in (0, 0, 1):
        state = torch.get_rng_state()
        tuned = with_lora(tiny_model("llama"), 2, seed)
        assert torch.equal(torch.get_rng_state(), state), "nobody else's random numbers are drawn"
        assert torch.equal(tuned(ids).logits, expected)
        begins.append(next(p for name, p in tuned.named_parameters() if "lora_A" in name))
    assert torch.equal(begins[0], begins[1])
    assert not torch.equal(begins[0], begins[2])
