"""What a recipe holds out, whichever source it is of."""

from pathlib import Path

from lmcompose.training.data import held_out_by_source
from lmcompose.training.encoding import Example
from lmcompose.training.recipe import TrainingRecipe
from tests.tiny import tiny_tokenizer


def held_out_documents(recipe: TrainingRecipe, base: Path) -> list[list[Example]]:
    """By document: the examples of each record."""
    found = held_out_by_source(recipe, tiny_tokenizer(), base)
    return [document for _, documents in found for document in documents]
