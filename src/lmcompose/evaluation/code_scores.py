"""Programs that models wrote, run in the sandbox and scored by pass@k: from lm-eval's samples to scores and rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcompose.evaluation.execution import Limits, Program, Verdict, run_programs
from lmcompose.evaluation.pass_at_k import mean_pass_at_k, pass_at_k
from lmcompose.evaluation.scores import Sample, examples, scores

NO_PROGRAM = "nothing that was written compiles and defines what the tests use"

Row = dict[str, Any]


def run_samples(
    samples: Sequence[Sample],
    *,
    allow: bool,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Run the programs of all samples, several at a time, each in a sandbox of its own.

    Args:
        samples: of a `ProgramTask`, as `lm_eval.evaluator.evaluate` logs them, one for each problem.
        allow, limits, workers, progress: as in `execution.run_programs`.

    Returns:
        One row for each problem: `id`, `name`, `target`, `prompt`, `responses` (what the model wrote), and `programs`,
        one for each response: its `source` (None where there is none, which has failed), `status`, `reason`, `seconds`.

    Raises:
        ConfigurationError: it is not allowed, or the machine cannot guard what has to be guarded.
    """
    sources = [(number, source) for number, sample in enumerate(samples) for source in sample["filtered_resps"]]
    programs = [_program(samples[number]["doc"], source) for number, source in sources if source is not None]
    verdicts = iter(run_programs(programs, limits=limits, workers=workers, progress=progress, allow=allow))
    rows = [
        {
            "id": row["id"],
            "name": sample["doc"]["name"],
            "target": row["target"],
            "prompt": sample["arguments"][0][0],
            "responses": row["responses"],
            "programs": [],
        }
        for row, sample in zip(examples(samples), sorted(samples, key=lambda sample: sample["doc_id"]), strict=True)
    ]
    by_id = {row["id"]: row for row in rows}
    for number, source in sources:
        verdict = Verdict("failed", NO_PROGRAM) if source is None else next(verdicts)
        by_id[samples[number]["doc_id"]]["programs"].append(
            {
                "source": source,
                "status": verdict.status,
                "reason": verdict.reason,
                "seconds": round(verdict.seconds, 3),
            }
        )
    return rows


def program_scores(rows: Sequence[Row], k: Sequence[int], seed: int = 0) -> dict[str, dict[str, Any]]:
    """pass@k of the rows of `run_samples`, each k with its interval over the problems, in the form of `scores.scores`.

    Every row is given its own estimates in `values`, so that two models can be compared problem by problem.

    Raises:
        ConfigurationError: a problem has fewer programs than a k asks for.
    """
    counts = [(len(row["programs"]), sum(program["status"] == "passed" for program in row["programs"])) for row in rows]
    metrics = [f"pass@{each}" for each in k]
    judged: list[Mapping[str, Any]] = []
    for row, (programs, passed) in zip(rows, counts, strict=True):
        values = {f"pass@{each}": pass_at_k(programs, passed, each) for each in k}
        row["values"] = {f"{metric},code": value for metric, value in values.items()}
        judged.append({"doc_id": row["id"], "filter": "code", "metrics": metrics, **values})
    means = {f"pass@{each},code": mean_pass_at_k(counts, each) for each in k}
    return scores(judged, means, seed)


def _program(doc: Mapping[str, Any], source: str) -> Program:
    return Program(source, doc["tests"], doc["setup"], tuple(doc["functions"]))
