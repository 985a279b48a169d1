"""A storyteller small enough to be made here: it knows a few sentences by heart, and writes them in any order."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = ("Tim", "Lily", "Ben", "Sue")
OPENINGS = ("One day, a boy named {0} saw a {1}.", "Once upon a time, there was a girl named {0}. She had a {1}.")
SENTENCES = (
    "He liked the {1}.", "She took it home.", '"Look, a {1}!" {0} said.', "The {1} was big.", "{0} gave it to his mom.",
    "They played with it all day.", "It made him happy.", "She told her mom, and {0} sat down.",
)  # fmt: skip
THINGS = ("cat", "ball", "hat", "frog", "tree")


def toy_stories(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    stories = []
    for _ in range(count):
        name, thing = generator.choice(NAMES), generator.choice(THINGS)
        parts = [generator.choice(OPENINGS), *generator.choice(SENTENCES, 4)]
        stories.append(" ".join(parts).format(name, thing))
    return stories


@pytest.fixture(scope="session")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama that tells such stories, and of its tokenizer."""
    stories, folder = toy_stories(400), tmp_path_factory.mktemp("teller")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    backend.train_from_iterator(
        stories,
        trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>", padding_side="left"
    )
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        rows = torch.tensor([[0, *tokenizer(story + story)["input_ids"]][:48] for story in stories])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(80):
            batch = rows[(16 * step) % 400 : (16 * step) % 400 + 16]
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder
