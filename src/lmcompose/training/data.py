"""From a recipe's sources to the rows that training sees, in the order in which it sees them.

Everything is decided here, before a model is loaded: what is held out, what is skipped, which example stands in which
row of which step. The result is a list-like dataset of the whole run, so that step N is the same whether the run got
there in one go, was killed and resumed, or is spread over several processes.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from lmcompose.errors import DataError
from lmcompose.training.encoding import Example, encode
from lmcompose.training.mixture import ExampleId, epoch_order, held_out
from lmcompose.training.packing import IGNORED, pack, packed_row
from lmcompose.training.recipe import DataSource, TrainingRecipe
from lmcompose.training.sources import check_source, read_records


class Rows(Dataset):
    """Rows by number: dicts of `input_ids`, `labels` and, where packed, `position_ids`, as int arrays.

    `in_order` tells the trainer that the order is part of the data and must not be shuffled again.
    """

    in_order = True

    def __init__(
        self, examples: Sequence[Sequence[Example]], rows: Sequence[Sequence[ExampleId]], packed: bool
    ) -> None:
        self.examples = examples
        self.rows = rows
        self.packed = packed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        documents = [self.examples[source][example] for source, example in self.rows[index]]
        if self.packed:
            return packed_row([(document.input_ids, document.labels) for document in documents])
        return {"input_ids": documents[0].input_ids, "labels": documents[0].labels}

    def tokens(self, rows: int) -> int:
        """Tokens of the first so many rows, learned or not, without padding."""
        return sum(len(self.examples[source][example].input_ids) for row in self.rows[:rows] for source, example in row)

    def longest(self) -> tuple[int, int]:
        """Tokens of the longest text and of the longest row."""
        lengths = [[len(self.examples[source][example].input_ids) for source, example in row] for row in self.rows]
        return max(max(row) for row in lengths), max(sum(row) for row in lengths)


@dataclass(frozen=True)
class CompositionData:
    """The rows of a run and what there is to say about them."""

    train: Rows
    validation: Rows | None
    steps: int
    epochs: float
    summary: list[dict[str, object]]
    """For each source: name, kind, training and validation examples, tokens, learned tokens, skipped examples."""
    fingerprint: str
    """Changes when any training token, or the order of the run, does."""

    def longest(self) -> tuple[int, int]:
        """Tokens of the longest text and of the longest row that the run sees, in training or in validation."""
        each = [rows.longest() for rows in (self.train, self.validation) if rows is not None]
        return max(text for text, _ in each), max(row for _, row in each)


def check_sources(recipe: TrainingRecipe, base: Path) -> None:
    """Look at the first record of every source, without a tokenizer and without a model.

    Raises:
        DataError: a file or dataset that is missing or empty, or that lacks a column.
    """
    for source in _all_sources(recipe):
        check_source(source, base)


def prepare_data(recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerBase, base: Path) -> CompositionData:
    """Read, tokenize, hold out, order and pack the data of a recipe.

    Args:
        recipe: validated.
        tokenizer: the anchor's.
        base: the folder that relative paths start from.

    Raises:
        DataError: data that cannot be used; the message names the place and what to do.
    """
    settings = recipe.training
    limit = recipe.validation.limit if recipe.validation else None
    train: list[list[Example]] = []
    validation: list[list[Example]] = []
    summary: list[dict[str, object]] = []
    for number, source in enumerate(recipe.data):
        records = encode_source(source, tokenizer, base, settings.max_length)
        trained, held_out = _hold_out(records, source, recipe, number)
        kept, held = _joined(trained), _joined(held_out[:limit])
        train.append(kept)
        if held:
            validation.append(held)
        summary.append(_summary(source, kept, held, records))
    for source in recipe.validation.data or [] if recipe.validation else []:
        records = encode_source(source, tokenizer, base, settings.max_length)[:limit]
        validation.append(_joined(records))
        summary.append(_summary(source, [], _joined(records), records))

    rows, epochs = _run(recipe, train)
    steps = len(rows) // settings.batch_size
    return CompositionData(
        train=Rows(train, rows, settings.packing),
        validation=_validation_rows(validation, settings.packing, settings.max_length) if validation else None,
        steps=steps,
        epochs=epochs,
        summary=summary,
        fingerprint=_fingerprint(train, rows),
    )


def encode_source(
    source: DataSource, tokenizer: PreTrainedTokenizerBase, base: Path, max_length: int
) -> list[list[Example]]:
    """The examples of each record of one source: none where it was skipped, several where a long text was split.

    Raises:
        DataError: nothing is left, or a record cannot be used.
    """
    records = [
        list(encode(record, where, source, tokenizer, max_length)) for where, record in read_records(source, base)
    ]
    if not records:
        raise DataError(f"{source.label} holds no example. Add data to it or take it out of the recipe.")
    if not any(records):
        raise DataError(
            f"{source.label}: all {len(records)} examples are longer than max_length {max_length} and were skipped. "
            "Raise training.max_length, or set long_examples to truncate for this source."
        )
    return records


def held_out_by_source(
    recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerBase, base: Path
) -> list[tuple[DataSource, list[list[Example]]]]:
    """What a recipe validates on: each source that it holds something out of, and these documents.

    Args and errors as in `prepare_data`, and DataError where the recipe validates on nothing.
    """
    found: list[tuple[DataSource, list[list[Example]]]] = []
    for number, source in enumerate(recipe.data):
        records = encode_source(source, tokenizer, base, recipe.training.max_length)
        found.append((source, _hold_out(records, source, recipe, number)[1]))
    for source in recipe.validation.data or [] if recipe.validation else []:
        records = encode_source(source, tokenizer, base, recipe.training.max_length)
        found.append((source, [examples for examples in records if examples]))
    found = [(source, documents) for source, documents in found if documents]
    if not found:
        raise DataError("The recipe holds nothing out. Give it validation: {fraction: 0.1}, or {data: [...]}.")
    return found


def _hold_out(
    records: list[list[Example]], source: DataSource, recipe: TrainingRecipe, number: int
) -> tuple[list[list[Example]], list[list[Example]]]:
    """Records to train and to validate on; one is held out whole, however many examples it was split into."""
    records = [examples for examples in records if examples]
    if recipe.validation is None or recipe.validation.fraction is None:
        return records, []
    if len(records) < 2:
        raise DataError(
            f"{source.label} has one example, which cannot be both trained and validated on. Add data, or give "
            "validation data of its own (validation: {data: [...]})."
        )
    seed = recipe.seed if recipe.validation.seed is None else recipe.validation.seed
    held = set(held_out(len(records), recipe.validation.fraction, seed + number).tolist())
    kept = [examples for i, examples in enumerate(records) if i not in held]
    return kept, [examples for i, examples in enumerate(records) if i in held]


def _joined(records: list[list[Example]]) -> list[Example]:
    return [example for examples in records for example in examples]


def _run(recipe: TrainingRecipe, train: list[list[Example]]) -> tuple[list[list[ExampleId]], float]:
    """The rows of the whole run, epoch after epoch, in whole batches; and how many epochs they are.

    A last batch that `epochs` leaves unfilled is filled from the epoch that would come next.
    """
    settings = recipe.training
    weights = [source.weight for source in recipe.data]
    shares = None if weights[0] is None else [float(weight or 0) for weight in weights]
    sizes = [len(examples) for examples in train]
    rows: list[list[ExampleId]] = []
    ends: list[int] = []
    wanted = None if settings.steps is None else settings.steps * settings.batch_size
    while wanted is None or len(rows) < wanted:
        order = epoch_order(sizes, shares, len(ends), recipe.seed)
        if settings.packing:
            lengths = [len(train[source][example].input_ids) for source, example in order]
            rows += [[order[document] for document in row] for row in pack(lengths, settings.max_length)]
        else:
            rows += [[example] for example in order]
        ends.append(len(rows))
        if wanted is None and settings.epochs is not None and len(ends) >= settings.epochs:
            before = ends[-2] if len(ends) > 1 else 0
            part = settings.epochs - (len(ends) - 1)
            batches = math.ceil((before + part * (ends[-1] - before)) / settings.batch_size)
            wanted = max(1, batches) * settings.batch_size
    assert wanted is not None
    return rows[:wanted], wanted / (len(rows) / len(ends))


def _validation_rows(validation: list[list[Example]], packed: bool, max_length: int) -> Rows:
    ids = [(source, example) for source, examples in enumerate(validation) for example in range(len(examples))]
    if not packed:
        return Rows(validation, [[one] for one in ids], packed=False)
    rows = pack([len(validation[source][example].input_ids) for source, example in ids], max_length)
    return Rows(validation, [[ids[document] for document in row] for row in rows], packed=True)


def _fingerprint(train: list[list[Example]], rows: list[list[ExampleId]]) -> str:
    digest = hashlib.sha256()
    for examples in train:
        for example in examples:
            digest.update(example.input_ids.tobytes())
            digest.update(example.labels.tobytes())
    digest.update(repr(rows).encode())
    return digest.hexdigest()


def _summary(
    source: DataSource, train: list[Example], validation: list[Example], records: list[list[Example]]
) -> dict[str, object]:
    both = [*train, *validation]
    return {
        "source": source.label,
        "kind": source.kind,
        "weight": source.weight,
        "train_examples": len(train),
        "validation_examples": len(validation),
        "tokens": sum(len(example.input_ids) for example in both),
        "learned_tokens": sum(int((example.labels[1:] != IGNORED).sum()) for example in both),
        "skipped": sum(not examples for examples in records),
    }


def _all_sources(recipe: TrainingRecipe) -> list[DataSource]:
    extra = recipe.validation.data if recipe.validation and recipe.validation.data else []
    return [*recipe.data, *extra]
