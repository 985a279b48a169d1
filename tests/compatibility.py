"""A pytest plugin that writes the outcome of a run, with the versions it ran under, to a JSON file.

    python -m pytest -p tests.compatibility --record-compatibility results/compatibility.json

One entry for each transformers version; other entries in the file are kept.
"""

import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import pytest

STARTED = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-compatibility", metavar="FILE", help="write this run's outcome to FILE (JSON)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    file = config.getoption("--record-compatibility")
    if not file or hasattr(config, "workerinput"):
        return
    record_path = Path(file)
    records = json.loads(record_path.read_text(encoding="utf-8")) if record_path.exists() else {}
    counts = {name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "error", "skipped")}
    records[f"transformers {version('transformers')}"] = {
        **counts,
        "exit_status": int(exitstatus),
        "seconds": round(time.monotonic() - config.stash[STARTED]),
        "marks": config.getoption("markexpr"),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "accelerate", "peft")}
        | {"python": platform.python_version()},
        "not_passed": sorted(
            report.nodeid for name in ("failed", "error") for report in terminalreporter.getreports(name)
        ),
    }
    record_path.parent.mkdir(parents=True, exist_ok=True)
    record_path.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n", encoding="utf-8")
