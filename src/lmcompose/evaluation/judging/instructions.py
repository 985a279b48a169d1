"""Instructions to follow, and answers to them, from files. This file runs no model.

An instruction is a JSON object a line: `instruction`, and if there are any `input` and `id`; or the layout of the
self-instruct seed tasks (arXiv 2212.10560), with `instances`, of which the first one's input counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmcompose.errors import DataError
from lmcompose.evaluation.rows import read_rows, text_of

PROMPT = "Instruction: {instruction}\n{input}Answer:"
STOP = ("\nInstruction:",)
"""Models that were never told to follow instructions go on with another one."""


@dataclass(frozen=True)
class Instruction:
    """One task: what is to be done, and with what."""

    id: str
    instruction: str
    input: str = ""

    @property
    def task(self) -> str:
        """Both in one text."""
        return f"{self.instruction}\n\n{self.input}" if self.input else self.instruction

    def prompt(self, chat: bool) -> str:
        """What a system reads: in a chat the task itself, else a form that ends where the answer begins."""
        given = f"Input: {self.input}\n" if self.input else ""
        return self.task if chat else PROMPT.format(instruction=self.instruction, input=given)


def read_instructions(file: str | Path, limit: int | None = None) -> list[Instruction]:
    """The instructions of a file; one without an `id` is called by its place, from "0" on.

    Raises:
        DataError: the file cannot be read, a line has no instruction, or two have one id.
    """
    found: dict[str, Instruction] = {}
    for where, row in read_rows(file, "an instruction with 'instruction'"):
        name = str(row.get("id", len(found)))
        if name in found:
            raise DataError(f"{where}: there are two instructions with the id '{name}'. Give each its own, or none.")
        instances = row.get("instances")
        first = instances[0] if isinstance(instances, list) and instances else row
        given = first.get("input") if isinstance(first, Mapping) else None
        found[name] = Instruction(name, text_of(row, "instruction", where), given if isinstance(given, str) else "")
    return list(found.values())[:limit]


def read_answers(file: str | Path, instructions: Sequence[Instruction]) -> dict[str, str]:
    """Answers that are written already, by instruction: JSON objects with `id` and `answer`.

    Raises:
        DataError: the file cannot be read, or an instruction has no answer.
    """
    found: dict[str, str] = {}
    for where, row in read_rows(file, "an answer with 'id' and 'answer'"):
        if "id" not in row or not isinstance(row.get("answer"), str):  # an empty answer is one
            raise DataError(f"{where}: an answer has the 'id' of its instruction, and 'answer', a text.")
        found[str(row["id"])] = row["answer"]
    missing = [instruction.id for instruction in instructions if instruction.id not in found]
    if missing:
        raise DataError(
            f"{file} has no answer to {len(missing)} of {len(instructions)} instructions, the first '{missing[0]}'. "
            "Both systems must answer all of them."
        )
    return {instruction.id: found[instruction.id] for instruction in instructions}
