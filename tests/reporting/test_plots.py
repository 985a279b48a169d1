"""Figures: that they are drawn from the numbers, at sizes a page can use, and touch no global state."""

import matplotlib
import numpy as np
from matplotlib.image import imread

from lmcompose.reporting.plots import COLOURS, benchmark_figure, kv_figure
from tests.reporting.results import decode_result, kv_result


def area(path, colour):
    """The share of a PNG that has exactly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return (np.abs(imread(path)[..., :3] * 255 - wanted).max(-1) < 1.5).mean()


def test_table_1_bars_grow_with_the_score(tmp_path):
    tall, short = kv_result(), kv_result()
    short["results"]["composition"]["kv_math"] = {"correct": 100, "total": 1000}
    green = COLOURS["composition"]
    full, less = (area(kv_figure(result, tmp_path / "kv.png"), green) for result in (tall, short))
    assert 0.01 < less < 0.85 * full


def test_table_1_without_intervals_and_with_every_row(tmp_path):
    result = kv_result()
    result["results"]["composition_mlp"] = {"kv_math": {"correct": 9, "total": 10}}
    path = kv_figure(result, tmp_path / "new" / "kv.png")
    height, width, _ = imread(path).shape
    assert 900 < width < 2000
    assert 500 < height < 1200
    assert area(path, COLOURS["composition_mlp"]) > 0.01


def test_benchmark_bars(tmp_path):
    assert area(benchmark_figure(decode_result(), tmp_path / "bench.png"), "#009E73") > 0.05


def test_drawing_leaves_the_users_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    kv_figure(kv_result(), tmp_path / "kv.png")
    assert dict(matplotlib.rcParams) == before
