"""Several documents in one row, none of which sees another.

A packed row carries `position_ids` that start again at 0 with every document and no attention mask; transformers
derives from them who may attend to whom. Whether a given model honours that is not assumed but tried out: see
`check_packing`. The functions on lengths and ids know no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lmcompose.architecture import run_with_head, text_config
from lmcompose.calm.prompts import IGNORED as IGNORED
from lmcompose.errors import MemberError


def pack(lengths: Sequence[int], max_length: int, open_rows: int = 64) -> list[list[int]]:
    """Divide documents among rows of at most `max_length` tokens, close to the order in which they come.

    Each document goes to the fullest open row that still has room for it (best fit); at most `open_rows` rows are
    open at a time, and the one opened first is closed first, so that no document moves far.

    Args:
        lengths: tokens of each document, each of 1 to `max_length`.
        max_length: tokens of a row.
        open_rows: how many rows wait for more documents.

    Returns:
        For each row the documents in it.
    """
    rows: list[list[int]] = []
    room: dict[int, int] = {}
    for document, length in enumerate(lengths):
        if not 1 <= length <= max_length:
            raise ValueError(f"document {document} has {length} tokens; a row holds 1 to {max_length}")
        fitting = [row for row, left in room.items() if left >= length]
        if fitting:
            row = min(fitting, key=lambda candidate: room[candidate])
        else:
            row = len(rows)
            rows.append([])
            room[row] = max_length
            if len(room) > open_rows:
                del room[min(room)]
        rows[row].append(document)
        room[row] -= length
        if not room[row]:
            del room[row]
    return rows


def packed_row(documents: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """One row from its documents.

    Args:
        documents: (input_ids, labels) of each, unshifted labels of the same length.

    Returns:
        `input_ids`, `labels` and `position_ids`, each [total length]. The first label of every document is ignored:
        it would be predicted from the last token of the document before.
    """
    labels = [labels.copy() for _, labels in documents]
    for own in labels:
        own[0] = IGNORED
    return {
        "input_ids": np.concatenate([ids for ids, _ in documents]),
        "labels": np.concatenate(labels),
        "position_ids": np.concatenate([np.arange(len(ids)) for ids, _ in documents]),
    }


@dataclass(frozen=True)
class Collator:
    """Rows of unequal length -> one batch of tensors [rows, longest], padded on the right.

    Packed rows (those with `position_ids`) get no attention mask: their padding is more documents of its own, none of
    them longer than the longest text, for which every member has positions.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {
            "input_ids": self._padded([row["input_ids"] for row in rows], longest, self.pad_token_id),
            "labels": self._padded([row["labels"] for row in rows], longest, IGNORED),
        }
        if "position_ids" in rows[0]:
            text = max(int(row["position_ids"].max()) for row in rows) + 1
            positions = [
                np.concatenate([row["position_ids"], np.arange(longest - len(row["position_ids"])) % text])
                for row in rows
            ]
            batch["position_ids"] = torch.from_numpy(np.stack(positions)).long()
        else:
            ones = [np.ones(len(row["input_ids"]), dtype=np.int64) for row in rows]
            batch["attention_mask"] = self._padded(ones, longest, 0)
        return batch

    @staticmethod
    def _padded(values: Sequence[np.ndarray], length: int, fill: int) -> torch.Tensor:
        out = torch.full((len(values), length), fill, dtype=torch.long)
        for row, value in enumerate(values):
            out[row, : len(value)] = torch.from_numpy(value.astype(np.int64))
        return out


@torch.no_grad()
def check_packing(members: dict[str, PreTrainedModel]) -> None:
    """Try on every member that a packed document reads nothing of its neighbour and starts at position 0.

    Two rows of two short documents are run, once with another first document. The second document's logits must not
    change, and must be those that it has alone. Two rows, because some attention kernels honour packing only in a
    batch of one.

    Raises:
        MemberError: a member lets documents see each other; the message says how to go on.
    """
    for name, member in members.items():
        reason = _packing_fault(member)
        if reason is not None:
            raise MemberError(
                f"packing: {reason} in '{name}' ({text_config(member).model_type}). Set packing: false in the recipe"
                + (", or load the model with attn_implementation='sdpa'." if _is_flash(member) else ".")
            )


def _packing_fault(member: PreTrainedModel, length: int = 7) -> str | None:
    embeddings: Any = member.get_input_embeddings()
    device = embeddings.weight.device
    generator = torch.Generator().manual_seed(0)
    vocabulary = min(text_config(member).vocab_size, embeddings.num_embeddings)
    first, other, second = torch.randint(1, vocabulary, (3, 2, length), generator=generator).to(device)
    alone = torch.arange(length, device=device).expand(2, -1)
    packed = torch.cat([alone, alone], dim=1)

    def logits(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        output: Any = run_with_head(member, **inputs)
        result: torch.Tensor = output.logits[:, -length:].float()
        return result

    after_first = logits(torch.cat([first, second], dim=1), packed)
    after_other = logits(torch.cat([other, second], dim=1), packed)
    by_itself = logits(second, alone)
    scale = by_itself.std()
    # The same shapes and masks give the same rounding, so what differs here has been read from the neighbour.
    if (after_first - after_other).abs().max() > 1e-4 * scale:
        return "a document would see the one before it in its row"
    tolerance = 1e-2 if member.dtype == torch.float32 else 0.2
    if (after_first - by_itself).abs().max() > tolerance * scale:
        return "a document would not be placed as it is when it stands alone"
    return None


def _is_flash(member: PreTrainedModel) -> bool:
    return "flash" in str(member.config._attn_implementation)
