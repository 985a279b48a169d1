"""The loss curve holds each point once, in order, and draws what it holds."""

import json
from pathlib import Path

from matplotlib.image import imread

from lmcompose.training.curve import loss_curve, write_curve

LOG = [
    {"eval_loss": 4.0, "step": 0},
    {"loss": 3.0, "learning_rate": 0.1, "grad_norm": 1.0, "epoch": 0.5, "step": 2},
    {"loss": 2.0, "learning_rate": 0.05, "grad_norm": 0.5, "epoch": 1.0, "step": 4},
    {"eval_loss": 2.5, "eval_runtime": 1.0, "step": 4},
    {"train_runtime": 9.0, "train_loss": 2.5, "step": 4},
    {"eval_loss": 2.2, "step": 4},  # after the run, of the best parameters
]


def test_points_are_taken_from_the_log_once_each() -> None:
    curve = loss_curve([*LOG, {"loss": 3.0, "step": 2}])
    assert [(point["step"], point["loss"]) for point in curve["train"]] == [(2, 3.0), (4, 2.0)]
    assert curve["validation"] == [{"step": 0, "loss": 4.0}, {"step": 4, "loss": 2.5}]


def test_the_picture_has_a_line_for_what_was_measured(tmp_path: Path) -> None:
    data, picture = write_curve(loss_curve(LOG), tmp_path, "a run")
    assert json.loads(data.read_text())["unit"] == "nats per learned token"
    full = imread(picture)
    write_curve({"train": [], "validation": []}, tmp_path, "a run")
    empty = imread(picture)
    assert (full.std(axis=2) > 0.1).sum() > (empty.std(axis=2) > 0.1).sum() + 500  # coloured pixels
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss_curve.json", "loss_curve.png"]
