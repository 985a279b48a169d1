"""Figures: that they are drawn from the numbers, at sizes a page can use, and touch no global state."""

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from lmcompose.errors import DataError
from lmcompose.reporting.plots import COLOURS, CYCLE, benchmark_figure, kv_figure, sweep_figure
from tests.reporting.results import decode_result, kv_result
from tests.reporting.traces import sweep_result


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


def test_a_sweep_has_a_curve_for_each_task_and_temperature(tmp_path):
    one = sweep_figure(sweep_result(temperatures=[1.0]), tmp_path / "one.png")
    four = sweep_figure([sweep_result(), sweep_result("questions", "higher")], tmp_path / "four.png")
    assert [area(one, colour) > 0 for colour in CYCLE[:4]] == [True, False, False, False]
    assert all(area(four, colour) > 1e-4 for colour in CYCLE[:4])


def test_the_diamond_is_at_the_best(tmp_path):
    """The curve is high at both ends and low in the middle; a diamond is white inside where a dot is not."""
    lower, higher = (
        sweep_figure(sweep_result(better=better, temperatures=[1.0]), tmp_path / f"{better}.png")
        for better in ("lower", "higher")
    )
    differing = (imread(lower) != imread(higher)).any(-1).any(0).nonzero()[0]
    width = imread(lower).shape[1]
    assert differing[0] < 0.3 * width
    assert 0.4 * width < differing[-1] < 0.7 * width
    left, middle = (
        [(imread(path)[:, columns, :3] == 1).all(-1).sum() for path in (lower, higher)]
        for columns in (slice(0, int(0.3 * width)), slice(int(0.4 * width), int(0.7 * width)))
    )
    assert left[0] < left[1]
    assert middle[0] > middle[1]


def test_a_sweep_without_intervals_or_with_one_value_only(tmp_path):
    result = sweep_result(values=[1.0], temperatures=[0.5, 1.0, 2.0])
    for row in result["results"]:
        row["interval"] = None
    result["results"][0]["mean"] = None
    assert area(sweep_figure(result, tmp_path / "temperatures.png"), CYCLE[0]) > 1e-3


def test_a_sweep_of_nothing_is_refused(tmp_path):
    result = sweep_result()
    for row in result["results"]:
        row["mean"] = None
    with pytest.raises(DataError, match="nothing to draw"):
        sweep_figure(result, tmp_path / "sweep.png")
    other = {**sweep_result(), "parameter": "gamma"}
    with pytest.raises(DataError, match="one figure"):
        sweep_figure([sweep_result(), other], tmp_path / "sweep.png")
    assert not list(tmp_path.iterdir())


def test_drawing_leaves_the_users_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    kv_figure(kv_result(), tmp_path / "kv.png")
    assert dict(matplotlib.rcParams) == before
