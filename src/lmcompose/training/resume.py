"""May a run start in this folder, and from where does it go on? A resumed run gives the losses of an uninterrupted one.

That holds only for the same recipe and the same data, so both are noted at the start and compared at a resume.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmcompose.errors import ConfigurationError, DataError, RecipeError
from lmcompose.folders import write_json_atomic
from lmcompose.training.arguments import is_main_process, processes
from lmcompose.training.checkpoints import checkpoints, latest_whole, remove_broken
from lmcompose.training.data import CompositionData
from lmcompose.training.recipe import TrainingRecipe

CHANGEABLE = {"output", "ablations"}
CHANGEABLE_TRAINING = {
    "gradient_accumulation", "gradient_checkpointing", "eval_batch_size", "keep_checkpoints", "workers"
}  # fmt: skip
"""What a recipe may change between a run and its resumption: nothing that changes the losses."""

COMPOSED = "a composition"
"""What `lmcompose train` trains, for the note of a run."""


def check_output(output: Path, recipe_path: Path, resume: bool) -> None:
    if output.exists() and not output.is_dir():
        raise RecipeError(f"output: {output} is a file. Name a folder.")
    if resume:
        if not checkpoints(output / "checkpoints"):
            raise ConfigurationError(
                f"There is no checkpoint in {output / 'checkpoints'} to resume from. Leave out --resume."
            )
        return
    if checkpoints(output / "checkpoints") or (output / "result.json").exists():
        raise ConfigurationError(
            f"{output} holds a run already. Go on with it (lmcompose train {recipe_path} --resume), delete the folder, "
            "or give the recipe another output."
        )


def note_run(recipe: TrainingRecipe, data: CompositionData, output: Path, method: str = COMPOSED) -> None:
    """Write down what a run is started with, for `match_run`."""
    if is_main_process():
        output.mkdir(parents=True, exist_ok=True)
        noted = {"recipe": recipe.model_dump(), "data_fingerprint": data.fingerprint, "method": method}
        write_json_atomic(output / "run.json", noted)


def match_run(recipe: TrainingRecipe, data: CompositionData, output: Path, method: str = COMPOSED) -> None:
    """Refuse to resume a run with another recipe or other data: its losses would not be those of an unbroken run.

    method: what is trained, in words.

    Raises:
        ConfigurationError: there is no note of what the run was started with, or something else was trained.
        RecipeError, DataError: the recipe, or the data, were changed.
    """
    file = output / "run.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{file} cannot be read, so this run cannot be resumed exactly. Start it anew."
        ) from error
    if before.get("method", COMPOSED) != method:
        raise ConfigurationError(
            f"The run in {output} trains {before.get('method', COMPOSED)}, and not {method}. Give the recipe another "
            "output."
        )
    changed = _differences(before["recipe"], json.loads(json.dumps(recipe.model_dump())))
    if changed:
        raise RecipeError(
            f"The recipe was changed since the run was started ({', '.join(changed)}), so resuming it would not give "
            "the same result. Undo the change, or give the recipe another output."
        )
    if before["data_fingerprint"] != data.fingerprint:
        raise DataError(
            "The composition data were changed since the run was started, so resuming it would not give the same "
            "result. Put the old data back, or give the recipe another output."
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    before, now = _said(before), _said(now)
    keys = dict.fromkeys([*now, *before])
    changed = [key for key in keys if key not in {"training", *CHANGEABLE} and before.get(key) != now.get(key)]
    training, settings = before.get("training", {}), now["training"]
    return changed + [
        f"training.{key}"
        for key in dict.fromkeys([*settings, *training])
        if key not in CHANGEABLE_TRAINING and training.get(key) != settings.get(key)
    ]


def _said(value: Any) -> Any:
    """The values of a recipe without those that are None, which an earlier version may not have known."""
    if isinstance(value, dict):
        return {key: _said(each) for key, each in value.items() if each is not None}
    return [_said(each) for each in value] if isinstance(value, list) else value


def checkpoint_to_resume(folder: Path, say: Callable[[str], None]) -> Path:
    if is_main_process():
        for broken in remove_broken(folder, processes()):
            say(f"Removed {broken.name}, which was cut short.")
    checkpoint = latest_whole(folder, processes())
    if checkpoint is None:
        raise ConfigurationError(
            f"No checkpoint in {folder} is whole for {processes()} process(es). Resume with as many processes "
            "as the run was started with, or start it anew."
        )
    say(f"Resuming from step {step_of(checkpoint)}.")
    return checkpoint


def step_of(checkpoint: Path | None) -> int | None:
    return int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint is not None else None
