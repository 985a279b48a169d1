"""Runs as real processes: killed, interrupted, out of disk, and two at once. All of them give the same losses."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmcompose.training.run import train

Project = Callable[..., Path]

LONGER = (
    ("steps: 12", "steps: 40"),
    ("eval_every: 6\n  save_every: 5", "eval_every: 20\n  save_every: 10"),
    ("batch_size: 4", "batch_size: 4\n  gradient_accumulation: 2"),
)
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if path),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def curve(recipe: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((recipe.parent / "out" / "loss_curve.json").read_text())
    return found


def finish(recipe: Path, **options: Any) -> dict[str, Any]:
    return train(recipe, say=lambda text: None, progress=False, **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, models: Path) -> dict[str, Any]:
    """The loss curve of the whole run, in this process."""
    from tests.training.conftest import write_project

    recipe = write_project(tmp_path_factory.mktemp("whole"), models, *LONGER)
    finish(recipe)
    return curve(recipe)


@contextmanager
def started(recipe: Path) -> Iterator[subprocess.Popen[str]]:
    """`lmcompose train RECIPE` in a process of its own, running, with its checkpoint of step 10 written."""
    command = [sys.executable, "-m", "lmcompose", "train", str(recipe), "--quiet"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        state = recipe.parent / "out" / "checkpoints" / "checkpoint-10" / "trainer_state.json"
        while not is_whole(state):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        yield process
    finally:
        process.kill()
        process.communicate()


def is_whole(state: Path) -> bool:
    """Whether the last file of a checkpoint is there to its end: on a busy machine it can be seen half-written."""
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def left_behind(recipe: Path) -> list[str]:
    """Files that a half-finished write leaves: hidden or partial ones."""
    return [str(path) for path in recipe.parent.rglob("*") if path.name.startswith(".") or path.suffix == ".part"]


def test_a_killed_run_resumes_to_the_losses_of_the_uninterrupted_one(
    project: Project, uninterrupted: dict[str, Any]
) -> None:
    recipe = project(*LONGER)
    with started(recipe) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (recipe.parent / "out" / "result.json").exists(), "it finished before it was killed"
    # A kill in the middle of a checkpoint leaves a folder that must not be resumed from.
    torn = recipe.parent / "out" / "checkpoints" / "checkpoint-39"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    result = finish(recipe, resume=True)
    assert 10 <= result["results"]["resumed_from_step"] < 40
    assert curve(recipe) == uninterrupted
    assert not torn.exists()


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(project: Project, uninterrupted: dict[str, Any]) -> None:
    recipe = project(*LONGER)
    with started(recipe) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
    assert "--resume" in errors
    assert "Traceback" not in errors + output
    out = recipe.parent / "out"
    assert not (out / "result.json").exists()
    assert not (out / "model").exists()
    assert not left_behind(recipe)
    stopped = curve(recipe)["train"][-1]["step"]
    assert 10 <= stopped < 40
    assert (out / "checkpoints" / f"checkpoint-{stopped}" / "trainer_state.json").is_file()
    assert finish(recipe, resume=True)["results"]["resumed_from_step"] == stopped
    assert curve(recipe) == uninterrupted


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(project: Project, uninterrupted: dict[str, Any]) -> None:
    recipe = project(*LONGER)
    with started(recipe) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2000, 2000))  # no file can grow beyond 2000 bytes
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors
    assert "checkpoint of step 20 could not be written" in errors
    assert "free some space" in errors
    assert "Traceback" not in errors + output
    out = recipe.parent / "out"
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["checkpoint-10"]
    assert not (out / "model").exists()
    assert not left_behind(recipe)
    finish(recipe, resume=True)
    assert curve(recipe) == uninterrupted


def test_two_processes_give_the_losses_of_one(project: Project, uninterrupted: dict[str, Any]) -> None:
    """`accelerate launch` with two gloo processes, each with half of every batch.

    `--multi_gpu` is accelerate's name for one process per device, also where the devices are CPUs; `--cpu` would start
    a single process.
    """
    recipe = project(*LONGER)
    launch = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    settings = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = [sys.executable, "-m", *launch, *settings, "-m", "lmcompose", "train", str(recipe), "--quiet"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Loaded and kept frozen") == 1
    assert json.loads((recipe.parent / "out" / "result.json").read_text())["results"]["processes"] == 2
    for kind in ("train", "validation"):
        ours, theirs = curve(recipe)[kind], uninterrupted[kind]
        assert [point["step"] for point in ours] == [point["step"] for point in theirs]
        assert [point["loss"] for point in ours] == pytest.approx([point["loss"] for point in theirs], rel=1e-4)
