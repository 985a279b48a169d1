"""A low-resource version of a data set by machine translation, with a quality check by translating it back.

Where a data set is not there in a language, it can be translated (as the CALM paper does for its GSM8K in low-resource
languages, arXiv 2401.02412, appendix). A text whose translation, translated back, is not like the text any more is
dropped. The check cannot see everything: a translator that copies its input comes back perfect, so copies are dropped
for themselves; one that errs the same way in both directions is not found out.

    output/forth.jsonl, back.jsonl    every translation as it comes
    output/kept.jsonl                 the data set's rows with the field translated, and `lmcompose` beside it
    output/dropped.jsonl              the others, each with its `reason`
    output/results.json               chrF, and how many were dropped why
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.identity import digest
from lmcompose.evaluation.ledger import Ledger
from lmcompose.evaluation.opening import Loading
from lmcompose.evaluation.rows import read_rows, text_of
from lmcompose.evaluation.writing import Writer, Writing
from lmcompose.folders import write_json_atomic, write_json_lines
from lmcompose.loading import Source

TEMPLATE = "{source}: {text}\n{target}:"
CHAT_TEMPLATE = "Translate from {source} into {target}. Write nothing but the translation.\n\n{text}"
STEPS = (20, 30, 40, 50, 60, 70)
"""Thresholds at which the result says how much would be kept."""


@dataclass(frozen=True)
class Direction:
    """From one language into another, with how a translation is asked for.

    Attributes:
        source, target: names of languages, as the prompt calls them.
        template: with {source}, {target} and {text}; it ends where the translation begins.
        examples: pairs (text, translation) that stand before it.
    """

    source: str
    target: str
    template: str = TEMPLATE
    examples: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        missing = [name for name in ("{source}", "{target}", "{text}") if name not in self.template]
        if "{text}" in missing or len(missing) == 2 + ("{text}" not in self.template):
            raise ConfigurationError(
                f"The template {self.template!r} lacks {' and '.join(missing)}. Give one such as {TEMPLATE!r}."
            )

    @property
    def back(self) -> "Direction":
        """The other way round."""
        swapped = tuple((translation, text) for text, translation in self.examples)
        return Direction(self.target, self.source, self.template, swapped)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "examples": [list(pair) for pair in self.examples]}

    def prompt(self, text: str) -> str:
        """What the translator reads for one text, which is put on one line."""
        shots = [f"{self._asking(one)} {one_line(other)}\n\n" for one, other in self.examples]
        return "".join([*shots, self._asking(text)])

    def _asking(self, text: str) -> str:
        asked = self.template.replace("{source}", self.source).replace("{target}", self.target)
        return asked.replace("{text}", one_line(text))


@dataclass(frozen=True)
class Checked:
    """One text with its translation there and back.

    Attributes:
        chrf: of what came back against the text, from 0 to 100.
        copied: chrF of the translation against the text: near 100 where it was not translated at all.
        reason: why it is dropped: "empty", "copied", "chrf"; None where it is kept.
    """

    text: str
    translation: str
    back: str
    chrf: float
    copied: float
    reason: str | None


def check(text: str, translation: str, back: str, threshold: float, beta: int = 1) -> Checked:
    """Whether a translation is good enough by what comes back, by sacrebleu's sentence chrF with `beta`."""
    score = chrf(beta)
    found = score(back, text) if back.strip() else 0.0
    reason: str | None = None
    if not translation.strip():
        reason = "empty"
    elif one_line(translation).casefold() == one_line(text).casefold():
        reason = "copied"
    elif found < threshold:
        reason = "chrf"
    return Checked(text, translation, back, found, score(translation, text) if translation.strip() else 0.0, reason)


def chrf(beta: int) -> Callable[[str, str], float]:
    """(hypothesis, reference) -> sentence chrF from 0 to 100.

    Raises:
        ConfigurationError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import CHRF
    except ImportError as error:
        raise ConfigurationError(f"chrF takes sacrebleu: pip install 'lmcompose[translation]' ({error}).") from error
    scorer = CHRF(beta=beta)
    return lambda hypothesis, reference: float(scorer.sentence_score(one_line(hypothesis), [one_line(reference)]).score)


def one_line(text: str) -> str:
    """A text on one line, since a translation ends with its line."""
    return " ".join(text.split())


def read_texts(file: str | Path, field: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a data set of JSON lines, in each of which `field` is a text.

    Raises:
        DataError: the file cannot be read, or a row has no such text.
    """
    rows = read_rows(file, f"a row of the data set with '{field}'")
    for where, row in rows:
        text_of(row, field, where)
        if "lmcompose" in row:
            raise DataError(f"{where} has a field 'lmcompose', which is what this writes: name the original data set.")
    return [row for _, row in rows][:limit]


def read_examples(file: str | Path) -> tuple[tuple[str, str], ...]:
    """Pairs to stand before a text: JSON lines with `source` and `target`.

    Raises:
        DataError: the file cannot be read, or a line is no pair.
    """
    rows = read_rows(file, "a pair with 'source' and 'target'")
    return tuple((text_of(row, "source", where), text_of(row, "target", where)) for where, row in rows)


def translate(
    rows: Sequence[Mapping[str, Any]],
    field: str,
    direction: Direction,
    forth: Source,
    output: str | Path,
    *,
    back: Source | None = None,
    threshold: float = 50.0,
    beta: int = 1,
    chat: bool = False,
    max_new_tokens: int = 256,
    redo: bool = False,
    command: str | None = None,
    report: Callable[[str], None] = lambda text: None,
    loading: Loading | None = None,
) -> dict[str, Any]:
    """Translate one field of a data set, translate it back, and keep what comes back well enough.

    Args:
        rows: of the data set.
        field: whose text is translated.
        direction: the languages, the template and the examples.
        forth: the translator: any model.
        output: the folder; what is there of the same run is not translated again. The threshold is no part of it, so
            that another one can be tried at once.
        back: the model that translates back, by default the same.
        threshold: the lowest chrF that is kept.
        beta: of chrF: 1 is the paper's chrF1, 2 is sacrebleu's default.
        chat: wrap prompts in the models' chat templates.
        max_new_tokens: of a translation.
        redo: begin again where `output` is of another run.
        command: to be recorded.
        report: called with a line about each step.
        loading: how models are loaded.

    Returns:
        What `results.json` has: `kept`, `dropped` by reason, `chrf` (the mean, and the quartiles), `copied` (the mean
        chrF of translations against their originals), and `kept_at`: how many would be kept at other thresholds.

    Raises:
        ConfigurationError: a bad setting, or the folder is of another run.
        DataError, MemberError, SavedFolderError: a text is too long, or a model cannot be read.
    """
    if not rows:
        raise ConfigurationError("There is no text to translate.")
    if not 0 <= threshold <= 100 or beta < 1:
        raise ConfigurationError(f"threshold = {threshold} must lie from 0 to 100, and beta = {beta} be 1 or more.")
    chrf(beta)  # before any model is loaded
    output, loading, back = Path(output), loading or Loading(), forth if back is None else back
    how = Writing(max_new_tokens=max_new_tokens, stop=() if chat else ("\n",), chat=chat)
    described = {"forth": loading.describe(forth), "back": loading.describe(back)}  # both, before the first is loaded
    texts = [str(row[field]) for row in rows]
    there = _translated("forth", forth, texts, direction, output, how, redo, report, loading)
    again = _translated("back", back, there, direction.back, output, how, redo, report, loading)
    checked = [
        check(text, translation, returned, threshold, beta)
        for text, translation, returned in zip(texts, there, again, strict=True)
    ]
    written = [_row(row, field, each) for row, each in zip(rows, checked, strict=True)]
    for name, wanted in (("kept", True), ("dropped", False)):
        lines = [row for row, each in zip(written, checked, strict=True) if (each.reason is None) == wanted]
        write_json_lines(output / f"{name}.jsonl", lines)
    result = {
        "what": "back-translation",
        "models": described,
        "direction": direction.to_dict(),
        "field": field,
        "texts": len(texts),
        "threshold": threshold,
        "beta": beta,
        "writing": how.to_dict(),
        **_summary(checked),
        **run_record(command=command),
    }
    write_json_atomic(output / "results.json", result)
    return result


def _translated(
    way: str,
    source: Source,
    texts: Sequence[str],
    direction: Direction,
    output: Path,
    how: Writing,
    redo: bool,
    report: Callable[[str], None],
    loading: Loading,
) -> list[str]:
    """The translations of `texts`, in order; of a text that is empty, nothing."""
    made_of = {
        "model": loading.describe(source)["digest"],
        "dtype": loading.dtype,
        "direction": direction.to_dict(),
        "texts": digest(list(texts)),
        **how.to_dict(),
    }
    ledger = Ledger(output / f"{way}.jsonl", made_of, redo)
    left = [
        (number, direction.prompt(text))
        for number, text in enumerate(texts)
        if text.strip() and str(number) not in ledger
    ]
    if left:
        report(f"{way}: {len(left)} texts from {direction.source} into {direction.target}")
        for done, (number, found) in enumerate(Writer(source, loading).write(left, how), start=1):
            first = next((line.strip() for line in found[0].splitlines() if line.strip()), "")
            ledger.keep(str(number), {"text": first})
            if done % 50 == 0:
                report(f"{way}: {done} of {len(left)}")
    return [ledger[str(number)]["text"] if str(number) in ledger else "" for number in range(len(texts))]


def _row(row: Mapping[str, Any], field: str, checked: Checked) -> dict[str, Any]:
    told = {name: value for name, value in asdict(checked).items() if name != "translation"}
    if checked.reason is None:
        del told["reason"]
    return {**row, field: checked.translation, "lmcompose": told}


def _summary(checked: Sequence[Checked]) -> dict[str, Any]:
    import numpy as np

    values = np.array([each.chrf for each in checked])
    dropped: dict[str, int] = {}
    for each in checked:
        if each.reason is not None:
            dropped[each.reason] = dropped.get(each.reason, 0) + 1
    usable = np.array([each.reason not in ("empty", "copied") for each in checked])
    return {
        "kept": sum(each.reason is None for each in checked),
        "dropped": dropped,
        "chrf": {"mean": float(values.mean()), "quartiles": [float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))]},
        "copied": float(np.mean([each.copied for each in checked])),
        "kept_at": {str(step): int((usable & (values >= step)).sum()) for step in STEPS},
    }
