"""Judge two systems pairwise, keeping every answer and every verdict as it comes.

output/answers/SYSTEM.jsonl    what each system answered, where it is a model
output/verdicts.jsonl          every reply of the judge, with the verdict that was read from it
output/results.json            the win rate, and all that docs/judging.md names
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.identity import digest
from lmcompose.evaluation.judging.chat import ChatJudge
from lmcompose.evaluation.judging.instructions import STOP, Instruction, read_answers
from lmcompose.evaluation.judging.verdicts import read_verdict, summarise
from lmcompose.evaluation.ledger import Ledger, check_label
from lmcompose.evaluation.opening import Loading
from lmcompose.evaluation.writing import Writer, Writing
from lmcompose.folders import write_json_atomic
from lmcompose.loading import Source

ORDERS = ("first", "second")
"""As what the first system's answer is shown: as A, or as B."""


def judge(
    systems: Mapping[str, Source],
    instructions: Sequence[Instruction],
    chat_judge: ChatJudge,
    output: str | Path,
    *,
    chat: bool = False,
    max_new_tokens: int = 256,
    seed: int = 0,
    redo: bool = False,
    command: str | None = None,
    report: Callable[[str], None] = lambda text: None,
    loading: Loading | None = None,
) -> dict[str, Any]:
    """Ask the judge about every instruction twice, with each system's answer shown first once.

    Args:
        systems: two, by name: models, or `.jsonl` files with their answers ("id", "answer").
        instructions: what both answer.
        chat_judge: whom to ask.
        output: the folder of the results; what is there of the same run is not asked again.
        chat: wrap instructions in the models' chat templates.
        max_new_tokens: of an answer.
        seed: of the intervals.
        redo: begin again where `output` is of another run.
        command: to be recorded.
        report: called with a line about each step.
        loading: how models are loaded.

    Returns:
        What `results.json` has: `verdicts.summarise` with both systems' names, the judge and the run record.

    Raises:
        ConfigurationError: not two systems, a bad setting, or the folder is of another run.
        DataError, MemberError, SavedFolderError: answers or a model cannot be read.
        RemoteError: the judge failed; what it said up to then is kept, and the same call goes on from there.
    """
    if len(systems) != 2:
        raise ConfigurationError(f"{len(systems)} systems: two are compared, no more and no fewer.")
    if not instructions:
        raise ConfigurationError("There is no instruction to judge answers to.")
    output, loading = Path(output), loading or Loading()
    how = Writing(max_new_tokens=max_new_tokens, stop=() if chat else STOP, chat=chat)
    described = {name: _described(source, loading) for name, source in systems.items()}
    read: dict[str, dict[str, str]] = {}
    for name, source in systems.items():  # before a model is loaded, which may write for hours
        if _is_file(source):
            read[name] = read_answers(source, instructions)  # type: ignore[arg-type]
        else:
            check_label(name)
    written = {
        name: read[name] if name in read else _answers(name, source, instructions, output, how, redo, report, loading)
        for name, source in systems.items()
    }
    (one, first), (other, second) = written.items()
    tasks = [[instruction.id, instruction.task] for instruction in instructions]
    made_of = {
        "judge": chat_judge.describe(),
        "systems": [one, other],
        "instructions": digest(tasks),
        "answers": digest([first, second]),
    }
    ledger = Ledger(output / "verdicts.jsonl", made_of, redo)
    asked = [(instruction, order) for instruction in instructions for order in ORDERS]
    left = [(instruction, order) for instruction, order in asked if _key(instruction, order) not in ledger]
    if left and len(left) < len(asked):
        report(f"{len(asked) - len(left)} of {len(asked)} verdicts are there already")
    for number, (instruction, order) in enumerate(left, start=1):
        shown = (first[instruction.id], second[instruction.id])
        a, b = shown if order == "first" else shown[::-1]
        reply = chat_judge.ask(instruction.task, a, b)
        verdict = None if reply.finish == "refused" else read_verdict(reply.text)
        ledger.keep(_key(instruction, order), {"verdict": verdict, **reply.to_dict()})
        if number % 20 == 0 or number == len(left):
            report(f"judged {number} of {len(left)}")
    pairs = [
        (ledger[_key(instruction, "first")]["verdict"], ledger[_key(instruction, "second")]["verdict"])
        for instruction in instructions
    ]
    result = {
        "what": "pairwise judging",
        "systems": [one, other],
        "models": described,
        "judge": chat_judge.describe(),
        "instructions": len(instructions),
        "writing": how.to_dict(),
        **summarise(pairs, seed),
        "requests": chat_judge.client.requests,
        "retried": chat_judge.client.retried,
        **run_record(seed=seed, command=command),
    }
    write_json_atomic(output / "results.json", result)
    return result


def _key(instruction: Instruction, order: str) -> str:
    return f"{instruction.id} {order}"


def _is_file(source: Source) -> bool:
    return isinstance(source, str | Path) and Path(source).suffix == ".jsonl"


def _described(source: Source, loading: Loading) -> dict[str, Any]:
    if _is_file(source):
        return {"answers": Path(str(source)).name}
    return loading.describe(source)


def _answers(
    name: str,
    source: Source,
    instructions: Sequence[Instruction],
    output: Path,
    how: Writing,
    redo: bool,
    report: Callable[[str], None],
    loading: Loading,
) -> dict[str, str]:
    """The answers by instruction that the model of one system writes."""
    prompts = {instruction.id: instruction.prompt(how.chat) for instruction in instructions}
    made_of = {"model": loading.describe(source)["digest"], "dtype": loading.dtype, **how.to_dict()}
    ledger = Ledger(output / "answers" / f"{name}.jsonl", made_of, redo)
    left = [
        (number, prompt)
        for number, (key, prompt) in enumerate(prompts.items())
        if key not in ledger or ledger[key]["prompt"] != prompt
    ]
    if left:
        report(f"{name}: {len(left)} answers to write")
        keys = list(prompts)
        for number, texts in Writer(source, loading).write(left, how):
            ledger.keep(keys[number], {"prompt": prompts[keys[number]], "answer": texts[0].strip()})
    return {key: ledger[key]["answer"] for key in prompts}
