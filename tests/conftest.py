"""Shared fixtures. Tests run offline, repeatably, and on one thread: on two busy cores two threads are slower."""

from __future__ import annotations

import os
import signal
import threading

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)

if threading.current_thread() is threading.main_thread():
    # A suite that is started in the background inherits an ignored Ctrl-C, and so would the processes that it tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """No test depends on what an earlier one drew."""
    torch.manual_seed(0)
