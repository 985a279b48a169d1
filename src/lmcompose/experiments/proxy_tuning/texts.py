"""The texts of the experiment: stories that a pretrained model tells, and the two texts that are tuned on.

What each part is made of never stands in another one: every story is drawn once, and Python's documentation is split
by document. This file trains nothing.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.errors import DataError
from lmcompose.experiments import standard_library
from lmcompose.experiments.proxy_tuning.diary import as_diary, whole_sentences
from lmcompose.experiments.proxy_tuning.profiles import Profile
from lmcompose.experiments.stages import Report

STORIES_AT_ONCE = 512
HELD_OUT = 0.15
"""The share of the documentation that no model is trained on."""

TASKS = {"diary": "stories as a diary", "documentation": "Python's documentation"}

Texts = dict[str, list[str]]


@dataclass(frozen=True)
class Rows:
    """Documents as rows of token ids.

    Attributes:
        ids: [rows, length], each row opened by the beginning-of-text token, padded on the right.
        mask: [rows, length], 0 at padding.
        documents: [rows], the document that each row is of: 0, 1, ...
    """

    ids: torch.Tensor
    mask: torch.Tensor
    documents: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids and the mask of some rows, as wide as the longest of them."""
        mask = self.mask[rows]
        width = int(mask.sum(dim=1).max())
        return self.ids[rows, :width], mask[:, :width]


def encode(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int, at_most: int | None = None
) -> Rows:
    """Documents, each closed by the end-of-text token, in rows of at most `length` tokens; a row is of one document.

    No document is read after that which fills row `at_most`.

    Raises:
        DataError: there is no document.
    """
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    rows: list[list[int]] = []
    owners: list[int] = []
    for number, document in enumerate(documents):
        ids = [*tokenizer(document, add_special_tokens=False)["input_ids"], end]
        for start in range(0, len(ids), length - 1):
            rows.append([begin, *ids[start : start + length - 1]])
            owners.append(number)
        if at_most is not None and len(rows) >= at_most:
            break
    if not rows:
        raise DataError("There is no text to make rows of. Draw more stories, or take a larger model to tell them.")
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.tensor([row + [end] * (length - len(row)) for row in rows])
    return Rows(padded, (torch.arange(length) < lengths[:, None]).long(), torch.tensor(owners))


@torch.no_grad()
def tell_stories(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    new_tokens: int,
    temperature: float,
    seed: int,
    report: Report | None = None,
) -> list[str]:
    """`count` different stories sampled from `model`, whole sentences of at most `new_tokens` tokens.

    Raises:
        DataError: the model tells the same few stories again and again, or never ends a sentence.
    """
    told: dict[str, None] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(4 * -(-count // STORIES_AT_ONCE)):
            start = torch.full((min(STORIES_AT_ONCE, 2 * (count - len(told))), 1), int(model.config.bos_token_id))
            rows = model.generate(  # type: ignore[operator]
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=new_tokens,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                pad_token_id=tokenizer.eos_token_id,
            )
            texts = (whole_sentences(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True))
            told.update(dict.fromkeys(text for text in texts if text))
            if report is not None:
                report(min(len(told), count), count, float("nan"))
            if len(told) >= count:
                return list(islice(told, count))
    raise DataError(
        f"Only {len(told)} stories were different and had a whole sentence, and {count} are wanted. Take another "
        "model, or let it write longer stories."
    )


def divide(stories: Sequence[str], profile: Profile) -> Texts:
    """All stories by what they are for; those to tune on and those held out are retold where they have a hero."""
    parts, start = {}, 0
    for name, count in (
        ("stories", profile.stories),
        ("other", profile.stories),
        ("diary", profile.tuning_stories),
        ("held_out", profile.held_out_stories),
    ):
        parts[name], start = list(stories[start : start + count]), start + count
    return {
        **parts,
        "diary": [page for story in parts["diary"] if (page := as_diary(story))],
        "diary_held_out": [page for story in parts["held_out"] if (page := as_diary(story))],
    }


@cache
def documentation() -> tuple[list[str], list[str]]:
    """Documents of Python's documentation to tune on, and documents held out."""
    documents = standard_library.prose()
    random.Random(0).shuffle(documents)
    cut = round(len(documents) * (1 - HELD_OUT))
    return documents[:cut], documents[cut:]


def rows_of(texts: Texts, tokenizer: PreTrainedTokenizerBase, profile: Profile) -> dict[str, Rows]:
    """All texts as rows. Of code and documentation, no more than a model reads.

    Keys: "stories", "other" and "code", to school models on; "held_out", stories; and for each task its name, to tune
    on, and "<task>_held_out".
    """
    rows = {name: encode(part, tokenizer, profile.length) for name, part in texts.items()}
    schooling, tuning = (each.steps * each.rows for each in (profile.small_schooling, profile.tuning))
    train, held_out = documentation()
    rows["code"] = encode(standard_library.code(), tokenizer, profile.length, at_most=schooling)
    rows["documentation"] = encode(train, tokenizer, profile.length, at_most=tuning)
    everything = encode(held_out, tokenizer, profile.length)
    rows["documentation_held_out"] = shortened(everything, profile.held_out_stories)
    return rows


def shortened(rows: Rows, most: int) -> Rows:
    """At most `most` rows, an equal number from the beginning of each document as far as it goes."""
    rank = torch.zeros(len(rows), dtype=torch.long)
    seen: dict[int, int] = {}
    for index, document in enumerate(rows.documents.tolist()):
        rank[index] = seen.get(document, 0)
        seen[document] = seen.get(document, 0) + 1
    kept = rank.argsort(stable=True)[:most].sort().values
    return Rows(rows.ids[kept], rows.mask[kept], rows.documents[kept])
