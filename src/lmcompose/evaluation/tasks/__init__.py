"""The papers' tasks in lm-eval's own format, and finding tasks by name: ours first, then all that lm-eval has.

Each YAML file here is one task, or one for every language that the data have.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from lmcompose.errors import ConfigurationError, DataError, nearest
from lmcompose.evaluation.tasks import data as datasets
from lmcompose.evaluation.tasks.programs import ProgramTask

HERE = Path(__file__).parent

LANGUAGES: dict[str, Callable[[str | None], list[str]]] = {
    "ntrex": datasets.ntrex_languages,
    "flores": datasets.flores_languages,
    "mgsm": datasets.mgsm_languages,
}
"""The tasks that there are once for every language: NAME_CODE, and NAME for all of them."""

KEY_VALUES = ("kv_subs", "num_math", "kv_math")
REALTIME_QA = ("realtime_qa", "realtime_qa_evidence")
SINGLE = ("gsm8k", "truthfulqa_mc1", "truthfulqa_mc2", "nq_open", "code_to_text", *REALTIME_QA, *KEY_VALUES)
PROGRAMS = ("humaneval", "mbpp")
"""The tasks whose answers are programs, which are run."""
GROUPS = {"truthfulqa": ("truthfulqa_mc1", "truthfulqa_mc2"), "kv_arithmetic": KEY_VALUES}

HEADLINES: dict[str, str] = {
    "ntrex": "chrf1,first_line",
    "flores": "chrf1,first_line",
    "mgsm": "exact_match,number",
    "gsm8k": "exact_match,number",
    "truthfulqa_mc1": "acc,none",
    "truthfulqa_mc2": "acc,none",
    "nq_open": "exact_match,answer",
    "code_to_text": "chrf1,docstring",
    "humaneval": "pass@1,code",
    "mbpp": "pass@1,code",
    **dict.fromkeys(REALTIME_QA, "acc,none"),
    **dict.fromkeys(KEY_VALUES, "exact_match,none"),
}
"""The score by which models are compared, by task or family of tasks; lm-eval's spelling: metric, comma, filter."""


def family(task: str) -> str:
    """The name under which the languages of a task stand together; a task without languages is its own."""
    name, _, code = task.partition("_")
    return name if code and name in LANGUAGES else task


def find_tasks(names: Sequence[str], data: str | None = None, chat: bool = False) -> dict[str, Task]:
    """The tasks of these names, in their order, with their data read; languages and groups are spelt out.

    Args:
        data: the folder with the data sets' own files; None reads them from the hub.
        chat: the prompts are for chat templates, for which some tasks have others.

    Raises:
        ConfigurationError: there is no such task.
        DataError: the data are not there, not in the layout of their source, or not to be had from the hub.
    """
    found: dict[str, Task] = {}
    rest = []
    for name in names:
        ours = _ours(name, data, chat)
        if ours is None:
            rest.append(name)
        found |= ours or {}
    return {**found, **(_of_lm_eval(rest) if rest else {})}


def _ours(name: str, data: str | None, chat: bool) -> dict[str, Task] | None:
    if name in PROGRAMS:
        return {name: _build(f"{name}_chat" if chat else name, name, data, kind=ProgramTask)}
    if name in GROUPS:
        return {member: _build(member, member, data) for member in GROUPS[name]}
    if name in SINGLE:
        return {name: _build(name, name, data)}
    if name in LANGUAGES:
        return {f"{name}_{code}": _build(name, f"{name}_{code}", data, code) for code in LANGUAGES[name](data)}
    beginning, _, code = name.partition("_")
    if beginning not in LANGUAGES or not code or (name.startswith("mgsm_") and code.count("_")):  # mgsm_direct_sw
        return None
    known = LANGUAGES[beginning](data)
    if code not in known:
        raise ConfigurationError(
            f"There is no task '{name}': {beginning} has {', '.join(known)}.{nearest(code, known)}"
        )
    return {name: _build(beginning, name, data, code)}


def _build(
    file: str, name: str, data: str | None, language: str | None = None, kind: type[ConfigurableTask] = ConfigurableTask
) -> ConfigurableTask:
    config: dict[str, Any] = load_yaml(HERE / f"{file}.yaml")
    options = {"data": data} if language is None else {"data": data, "language": language}
    return kind(config={**config, "task": name, "dataset_kwargs": options})


def _of_lm_eval(names: Sequence[str]) -> dict[str, Task]:
    manager = TaskManager()  # which reads some thousand files, so only where it is needed
    for name in names:
        if name not in manager.all_tasks:
            ours = [*LANGUAGES, *SINGLE, *GROUPS, *PROGRAMS]
            raise ConfigurationError(
                f"There is no task '{name}', neither here nor in lm-eval.{nearest(name, [*ours, *manager.all_tasks])} "
                f"Here are {', '.join(ours)}; `lm-eval ls tasks` lists the others."
            )
    try:
        found = dict(manager.load(list(names))["tasks"])
    except Exception as error:  # the hub, the network and a task's own code have no common error
        raise DataError(
            f"lm-eval could not set up {', '.join(names)}: {str(error).partition(chr(10))[0]} Its data are on the hub."
        ) from error
    for name, task in found.items():
        if getattr(task, "UNSAFE_CODE", False):
            raise ConfigurationError(
                f"'{name}' runs what a model wrote without a sandbox, and so is not run here. Tasks that have one are "
                f"{', '.join(PROGRAMS)}."
            )
    return found
