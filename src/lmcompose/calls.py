"""The state of a forward pass, kept where neither a model nor another thread can see it.

This file knows no hooks and no models.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch


class CallSlot:
    """Holds what the pass that is under way in this thread does where a model is hooked.

    Copies and pickles come out empty but still shared by all that shared the original, so that a deep copy of a
    composition has hooks and a slot of its own.
    """

    def __init__(self) -> None:
        self._current: ContextVar[Any] = ContextVar("lmcompose_call", default=None)
        self._traced: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "CallSlot":
        memo[id(self)] = copied = CallSlot()
        return copied

    def __reduce__(self) -> tuple[type["CallSlot"], tuple[()]]:
        return CallSlot, ()

    @property
    def current(self) -> Any:
        """What hooks are to do in the pass under way, or None outside one."""
        if torch.compiler.is_compiling():
            return self._traced
        return self._current.get() or self._traced  # the latter where a compiled pass has a graph break

    @contextmanager
    def during(self, what: Any) -> Iterator[None]:
        """Let every hook of this slot see `what` until the block ends."""
        if torch.compiler.is_compiling():  # which cannot trace a ContextVar, and would split the graph at every hook
            before, self._traced = self._traced, what
            try:
                yield
            finally:
                self._traced = before
            return
        token = self._current.set(what)
        try:
            yield
        finally:
            self._current.reset(token)
