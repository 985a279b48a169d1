"""Models on tasks by lm-eval, with one file for each model and task, so that a run that was killed goes on.

    output/results.json              the scores of all models, side by side, and what made them
    output/MODEL/TASK.json           the scores, and every example with what the model made of it
    output/MODEL/.TASK.SETTINGS...   lm-eval's cache of answers, while the task runs

A file that is there with the same settings is kept and its task is not run again; one with other settings is refused.
"""

import gc
import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmcompose.errors import ConfigurationError

# ruff: noqa: E402  (the message stands before the imports that all need lm-eval)
INSTALL = "Evaluating takes lm-eval, which is not installed here: pip install 'lmcompose[eval]'"
try:
    import lm_eval.evaluator
    from lm_eval.api.model import CacheHook, CachingLM
    from lm_eval.api.task import Task
except ImportError as error:
    raise ConfigurationError(f"{INSTALL} ({error}).") from error

from tqdm import tqdm

from lmcompose.card import run_record
from lmcompose.evaluation.code_scores import program_scores, run_samples
from lmcompose.evaluation.execution import check_allowed, check_sandbox
from lmcompose.evaluation.hflm import ComposedLM
from lmcompose.evaluation.identity import digest
from lmcompose.evaluation.paired import paired
from lmcompose.evaluation.remote_lm import RemoteLM
from lmcompose.evaluation.remote_system import RemoteSystem, describe_system, read_system
from lmcompose.evaluation.scores import examples, scores
from lmcompose.evaluation.settings import Settings, alphas, check_chat
from lmcompose.evaluation.tasks import HEADLINES, PROGRAMS, family, find_tasks
from lmcompose.evaluation.tasks.programs import ProgramTask
from lmcompose.folders import write_json_atomic
from lmcompose.loading import Source

Result = dict[str, Any]


def evaluate(
    models: Mapping[str, Source | RemoteSystem],
    tasks: Sequence[str],
    output: str | Path,
    *,
    settings: Settings | None = None,
    data: str | Path | None = None,
    batch_size: int = 8,
    device: str | None = None,
    trust_remote_code: bool = False,
    use_safetensors: bool = True,
    redo: bool = False,
    allow_code_execution: bool = False,
    command: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Result:
    """Every model on every task; of what is there from an earlier run, nothing is done again.

    Args:
        models: by the names that they have in the results; the others are compared with the first. A YAML file
            describes one behind an API (see `remote_system`).
        tasks: names of ours (see docs/evaluate.md) and of lm-eval's.
        output: the folder of the results.
        data: the folder with the data sets' own files; None reads them from the hub.
        redo: run what is there with other settings again, in place of refusing it.
        allow_code_execution: run programs that a model wrote, in the sandbox, which some tasks need; the environment
            variable `LMCOMPOSE_ALLOW_CODE_EXECUTION` says the same.
        command: to be recorded; None is that of this process.
        report: called with a line about each step.

    Returns:
        What `results.json` has; see `summary`.

    Raises:
        ConfigurationError: no such task, names or settings that cannot be, results of other settings in `output`, or a
            task that runs what a model wrote where that is not allowed or cannot be guarded.
        DataError, MemberError, SavedFolderError: data or a model cannot be read.
    """
    settings, output = settings or Settings(), Path(output)
    _check_names(models)
    runs_programs = any(name in PROGRAMS for name in tasks)
    settings.check(runs_programs)
    if runs_programs:
        check_allowed(allow_code_execution, "allow_code_execution=True")
        check_sandbox()
    found = find_tasks(tasks, None if data is None else str(data), settings.chat)
    stamps = {name: _stamp(task) for name, task in found.items()}
    for task in found.values():
        _configure(task, settings)
    models = {label: read_system(source) for label, source in models.items()}
    here: dict[str, Any] = {label: source for label, source in models.items() if not isinstance(source, RemoteSystem)}
    if settings.chat:
        check_chat(here, trust_remote_code)
    reading: dict[str, Any] = {"trust_remote_code": trust_remote_code, "use_safetensors": use_safetensors}
    alpha_of = {**dict.fromkeys(models), **alphas(here, settings.alpha, **reading)}
    described = {label: describe_system(source, **reading) for label, source in models.items()}
    wanted = {
        (label, name): {
            "model": described[label]["digest"],
            "task": stamps[name],
            **settings.for_task(name in PROGRAMS, alpha_of[label]),
        }
        for label in models
        for name in found
    }
    results: dict[str, dict[str, Result]] = {label: {} for label in models}
    for label, name in wanted:  # all of them, before the first model is loaded
        kept = _kept(_file(output, label, name), wanted[label, name], redo)
        if kept is not None:
            results[label][name] = kept
            if name in PROGRAMS:  # of the same programs another k may be asked for
                kept["scores"] = program_scores(kept["examples"], settings.pass_at)
    for label, source in models.items():
        left = [name for name in found if name not in results[label]]
        if len(left) < len(found):
            report(f"{label}: {len(found) - len(left)} of {len(found)} tasks are there already")
        if not left:
            continue
        options = {"device": device, "dtype": settings.dtype, "batch_size": batch_size, **reading}
        model: Any
        if isinstance(source, RemoteSystem):
            model = RemoteLM(source, **options)
        else:
            model = ComposedLM(source, alpha=alpha_of[label], **options)
        for number, name in enumerate(left, start=1):
            report(f"{label}: {name}, task {number} of {len(left)}")
            given = wanted[label, name]
            result = {
                "what": "evaluation task",
                "model": {"label": label, **described[label]},
                "task": name,
                "settings": given,
                **_run(model, found[name], settings, _file(output, label, name), digest(given)),
                "batch_size": batch_size,
                **run_record(seed=settings.seed, command=command),
            }
            write_json_atomic(_file(output, label, name), result)
            results[label][name] = result
        del model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    whole = {
        **summary(results),
        "models": described,
        "settings": {**asdict(settings), "pass_at": list(settings.pass_at)},
        **run_record(seed=settings.seed, command=command),
    }
    write_json_atomic(output / "results.json", whole)
    return whole


def summary(results: Mapping[str, Mapping[str, Result]]) -> Result:
    """The scores of several models side by side.

    Args:
        results: by model and task, what is written for each.

    Returns:
        `scores`, by task, score and model; `headlines`, the score by which each task is compared; `minus_first`, see
        `paired.paired`; and `families`: for each task that there is once for every language, its `tasks`, the `mean` of
        their headlines by model, and for each model but the first, in how many languages it `beats` the first:
        #(> m_B) in the CALM paper. `cut` counts the prompts that were longer than a model reads, by "model, task".
    """
    labels = list(results)
    tasks = list(results[labels[0]])
    found: dict[str, dict[str, dict[str, Any]]] = {}
    cut: dict[str, int] = {}
    for task in tasks:
        names = results[labels[0]][task]["scores"]
        cut |= {f"{label}, {task}": count for label in labels if (count := results[label][task]["cut"])}
        found[task] = {name: {label: results[label][task]["scores"][name] for label in labels} for name in names}
    headlines = {task: HEADLINES.get(family(task), next(iter(found[task]), "")) for task in tasks}
    families: dict[str, Any] = {}
    for name in dict.fromkeys(family(task) for task in tasks):
        members = [task for task in tasks if family(task) == name and name != task]
        if members:
            estimates = {
                label: [found[task][headlines[task]][label]["estimate"] for task in members] for label in labels
            }
            families[name] = {
                "tasks": members,
                "mean": {label: sum(values) / len(values) for label, values in estimates.items()},
                "beats": {
                    label: sum(ours > first for ours, first in zip(values, estimates[labels[0]], strict=True))
                    for label, values in estimates.items()
                    if label != labels[0]
                },
            }
    return {
        "what": "evaluation",
        "scores": found,
        "headlines": headlines,
        "minus_first": paired(results, {task: score for task, score in headlines.items() if score}),
        "families": families,
        "cut": cut,
    }


# ------------------------------------------------------------------------------------------------------------ one task


def _configure(task: Task, settings: Settings) -> None:
    """What `lm_eval.simple_evaluate` does to a task before it runs one; a task that is set to no shots stays so."""
    own = task.get_config("num_fewshot")
    if own != 0:
        task.set_config(key="num_fewshot", value=(own or 0) if settings.shots is None else settings.shots)
    _check_shots(task)
    if settings.max_new_tokens is not None and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value={"max_gen_toks": settings.max_new_tokens}, update=True)
    if isinstance(task, ProgramTask) and settings.temperature > 0:
        task.temperature = settings.temperature
        task.draws = [f"{settings.seed}.{number}" for number in range(settings.samples)]


def _check_shots(task: Task) -> None:
    """Refuse more shots than there are, of which lm-eval has a bare assertion."""
    shots, pool = task.get_config("num_fewshot"), getattr(getattr(task, "sampler", None), "df", None)
    if shots and pool:
        config = task.get_config("fewshot_config")
        itself = config is not None and config.split == task.get_config("test_split")
        there = len(pool) - itself
        if shots > there:
            raise ConfigurationError(
                f"{task.task_name}: {shots} examples before each question are asked for, and {there} can be shown. "
                "Give fewer --shots."
            )


def _stamp(task: Task) -> str:
    """What a task is, with its data: another prompt, another extraction or other examples give another stamp."""
    left_out = ("dataset_kwargs", "metadata", "task")
    config = {key: value for key, value in task.dump_config().items() if key not in left_out}
    return digest([config, list(task.eval_docs)])


def _run(lm: ComposedLM, task: Task, settings: Settings, file: Path, key: str) -> Result:
    """One model on one task. What was answered before a kill is read from lm-eval's cache."""
    _check_room(lm, task)
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    task.set_fewshot_seed(seed=settings.seed)
    beginning = f".{file.stem}."
    for stale in file.parent.glob(f"{beginning}*.db*"):
        if key not in stale.name:
            stale.unlink()
    cache = file.parent / f"{beginning}{key}.db"
    caching = CachingLM(lm, str(cache))
    try:
        measured = lm_eval.evaluator.evaluate(
            lm=caching,
            task_dict={"tasks": {task.task_name: task}, "groups": {}},
            limit=settings.limit,
            bootstrap_iters=0,  # of lm-eval's own standard errors; the intervals are ours
            log_samples=True,
            apply_chat_template=settings.chat,
            fewshot_as_multiturn=settings.chat,
        )
    finally:
        caching.dbdict.close()
        lm.set_cache_hook(CacheHook(None))
    samples = measured["samples"][task.task_name]
    result = {
        **_scored(task, samples, measured["results"][task.task_name], settings),
        "shots": task.get_config("num_fewshot"),
        "prompt": samples[0]["arguments"][0][0],
        "cut": _count_cut(lm, samples),
    }
    for left in file.parent.glob(f"{cache.name}*"):  # only now: where a program cannot be run, the answers are kept
        left.unlink()
    return result


def _scored(task: Task, samples: Sequence[Any], aggregated: Mapping[str, Any], settings: Settings) -> Result:
    """The scores and the examples; programs are run for theirs."""
    if not isinstance(task, ProgramTask):
        return {"scores": scores(samples, aggregated), "examples": examples(samples)}
    with tqdm(desc=f"{task.task_name}: running programs") as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        rows = run_samples(samples, allow=True, progress=progress)  # it was asked before anything was loaded
    return {"scores": program_scores(rows, settings.pass_at), "examples": rows}


def _check_room(lm: ComposedLM, task: Task) -> None:
    """Refuse answers that may be longer than the model's whole text, of which lm-eval has a bare assertion."""
    longest = (task.get_config("generation_kwargs") or {}).get("max_gen_toks", lm.max_gen_toks)
    if task.get_config("output_type") == "generate_until" and longest >= lm.max_length:
        raise ConfigurationError(
            f"{task.task_name}: an answer may have {longest} tokens, and the model reads {lm.max_length} in all. Give "
            f"a smaller --max-new-tokens, well below {lm.max_length}."
        )


def _count_cut(lm: ComposedLM, samples: Sequence[Mapping[str, Any]]) -> int:
    """Of how many examples the model could not read the whole prompt, so that it lost its beginning."""
    asked = {sample["doc_id"]: sample["arguments"] for sample in samples}
    return sum(
        any(
            len(request) > 1 and request[0] and lm.is_too_long(request[0], _room(lm, request[1]))
            for request in requests
        )
        for requests in asked.values()
    )


def _room(lm: ComposedLM, answer: dict[str, Any] | str) -> str | int:
    return int(answer.get("max_gen_toks") or lm.max_gen_toks) if isinstance(answer, dict) else answer


# --------------------------------------------------------------------------------------------------------------- files


def _file(output: Path, label: str, task: str) -> Path:
    return output / label / f"{task.replace('/', '_')}.json"


def _kept(file: Path, wanted: Mapping[str, Any], redo: bool) -> Result | None:
    """What an earlier run wrote, if it was with the same settings.

    Raises:
        ConfigurationError: it was with others, and is not to be done again.
    """
    if not file.is_file():
        return None
    try:
        there: Result = json.loads(file.read_text(encoding="utf-8"))
        given = there["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is no result of this command ({error}). Remove it, or name another --output."
        ) from error
    differing = [name for name, value in wanted.items() if given.get(name) != value]
    if not differing:
        return there
    if redo:
        return None
    what = ", ".join(
        {"model": "the model's files", "task": "the task or its data"}.get(
            name, f"{name} {given.get(name)}, now {wanted[name]}"
        )
        for name in differing
    )
    raise ConfigurationError(
        f"{file} is of another run, which differs in {what}. Name another folder with --output, or pass --redo to run "
        "it again and replace it."
    )


def _check_names(models: Mapping[str, Any]) -> None:
    if not models:
        raise ConfigurationError("There is no model to evaluate. Name at least one.")
    for label in models:
        if not label or "/" in label or "\\" in label or label.startswith("."):
            raise ConfigurationError(
                f"'{label}' cannot be the name of a model in the results: it is a folder's. Give one, such as "
                "tuned=runs/tuned/model."
            )


def quiet() -> None:
    """Keep lm-eval's advice out of a command's output; its progress bars and errors still come through."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
