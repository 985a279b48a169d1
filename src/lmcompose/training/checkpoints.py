"""Which checkpoints of a run are whole, and getting rid of those that are not.

A checkpoint is written file by file with its trainer state last, so a kill in the middle leaves a folder without one
(or with one that does not parse). This file knows nothing of models.
"""

import json
import re
import shutil
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
_FILES = ("optimizer.pt", "scheduler.pt")
_MODELS = (("model.safetensors", "config.json"), ("adapter_model.safetensors", "adapter_config.json"))
"""Of what is trained: parameters of its own, or an adapter's."""
STATE_FILE = "trainer_state.json"


def is_whole(checkpoint: Path, processes: int = 1) -> bool:
    """Whether a checkpoint has all that an exact resume on `processes` processes reads."""
    random_states = (
        ["rng_state.pth"] if processes == 1 else [f"rng_state_{process}.pth" for process in range(processes)]
    )
    if not all((checkpoint / name).is_file() for name in (*_FILES, *random_states)):
        return False
    if not any(all((checkpoint / name).is_file() for name in model) for model in _MODELS):
        return False
    return state_written_at(checkpoint) is not None


def state_written_at(checkpoint: Path) -> int | None:
    """When the trainer state, the last file of a checkpoint, was written (in ns); None where it is not whole."""
    state = checkpoint / STATE_FILE
    try:
        json.loads(state.read_text(encoding="utf-8"))
        return state.stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders in `folder`, whole or not, the earliest step first."""
    found = [(int(match[1]), entry) for entry in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


def latest_whole(folder: Path, processes: int = 1) -> Path | None:
    """The latest checkpoint that can be resumed from, or None."""
    whole = [checkpoint for checkpoint in checkpoints(folder) if is_whole(checkpoint, processes)]
    return whole[-1] if whole else None


def remove_broken(folder: Path, processes: int = 1) -> list[Path]:
    """Delete the checkpoints that a kill cut short; returns what was deleted."""
    broken = [checkpoint for checkpoint in checkpoints(folder) if not is_whole(checkpoint, processes)]
    for checkpoint in broken:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return broken


def goes_on(checkpoints: Path) -> bool:
    """Whether a stopped run can go on from here; what a kill left broken is removed first."""
    remove_broken(checkpoints)
    return latest_whole(checkpoints) is not None
