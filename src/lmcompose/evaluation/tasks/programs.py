"""Tasks whose answers are programs: one request for each program that is drawn, and the programs as filters of lm-eval.

Nothing is run here. What lm-eval would score, `lmcompose.evaluation.code_scores` runs and scores afterwards.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from lmcompose.evaluation.code_extraction import completed_function, written_program

SAMPLING = {"top_p": 0.95, "top_k": 0}
"""How programs are drawn, beside the temperature: Chen et al. 2021 (arXiv 2107.03374, section 3.2)."""

Doc = Mapping[str, Any]


class ProgramTask(ConfigurableTask):
    """A task of lm-eval's with several programs for each problem, greedy or drawn.

    Attributes:
        draws: for each program of a problem the seed that it is drawn with, as a text; None decodes greedily, once.
        temperature: of the drawing.
    """

    draws: Sequence[str] | None = None
    temperature: float = 0.0

    def construct_requests(self, doc: Doc, ctx: str, **options: Any) -> list[Instance]:
        """One request for each program. Their seeds make them differ, so each has an answer of its own in the cache."""
        options = {
            name: value for name, value in options.items() if name not in ("apply_chat_template", "chat_template")
        }
        settings = deepcopy(self.config.generation_kwargs)
        if self.draws is None:
            return [Instance(self.OUTPUT_TYPE, doc, (ctx, settings), 0, **options)]
        settings = {**settings, **SAMPLING, "temperature": self.temperature}
        settings.pop("do_sample", None)  # with it lm-eval's cache would keep nothing; a temperature says it as well
        return [
            Instance(self.OUTPUT_TYPE, doc, (ctx, {**settings, "seed": seed}), number, **options)
            for number, seed in enumerate(self.draws)
        ]


def completed(responses: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str | None]]:
    """`completed_function` of every response, as a filter of lm-eval."""
    return [
        [completed_function(doc["prompt"], text, doc["function"]) for text in texts]
        for texts, doc in zip(responses, docs, strict=True)
    ]


def written(responses: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str | None]]:
    """`written_program` of every response, as a filter of lm-eval."""
    return [
        [written_program(text, doc["functions"]) for text in texts] for texts, doc in zip(responses, docs, strict=True)
    ]


def later(doc: Doc, results: Sequence[str | None]) -> dict[str, float]:
    """Nothing: no program is run, and so none is scored, while lm-eval collects the answers."""
    return {}
