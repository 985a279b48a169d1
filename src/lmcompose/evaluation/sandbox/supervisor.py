"""The process between lmcompose and the program: it builds the sandbox, watches, kills, and says what happened.

It reads one message of settings and, after the program has been started, one with the tests, so that the program's
process, which is a copy of this one, has never held them. It writes one message with the verdict.
"""

import os
import select
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import layers, running
from .cell import start_cell
from .processes import kill_descendants, resident, stored, used_by_the_dead, used_by_the_living
from .wire import receive, send

INTERVAL = 0.05
"""Seconds between two looks at the memory of all processes together."""


def main() -> None:
    """Run one program as the message on standard input says, and answer on standard output."""
    layers.die_with_parent()
    layers.adopt_orphans()
    settings = receive(0)
    run = Run(settings)
    answer = run.verdict()
    kill_descendants()
    # What the kernel clears away with a namespace is counted nowhere afterwards, so the last look may know more.
    send(1, {**answer, "cpu_seconds": max(run.cpu_seconds, used_by_the_dead())})


class Run:
    """One program, its tests if it has any, and what has been seen of them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.limits = settings["limits"]
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.answer: dict[str, Any] = {"layers": [], "missing": {}}
        self.cpu_seconds = 0.0

    def verdict(self) -> dict[str, Any]:
        """Start, watch and judge."""
        stdin = os.memfd_create("stdin")
        os.write(stdin, self.settings["stdin"].encode("utf-8", "surrogatepass"))
        os.lseek(stdin, 0, os.SEEK_SET)
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "go", "forth", "back", "verdict", "alive")}
        ours = {name: ends[0] for name, ends in pipes.items()}
        theirs = {name: ends[1] for name, ends in pipes.items()}
        tested = self.settings["tested"]
        # The descriptors that the program has from 3 on: requests in, replies out; or the token in, the verdict out.
        channels = [ours["forth"], theirs["back"] if tested else theirs["verdict"]]
        source = self.settings["source"]
        job: Callable[[], NoReturn] = (
            (lambda: running.serve(source, 3, 4)) if tested else (lambda: running.run_whole(source, 3, 4))
        )
        streams = [stdin, theirs["stdout"], theirs["stderr"]]
        state = start_cell(self.settings, streams + channels, job, ours["go"], theirs["alive"])
        for name in ("stdout", "stderr", "alive"):
            os.close(theirs[name])
        self.answer |= {"layers": state.get("layers", []), "missing": state.get("missing", {})}
        if "refused" in state:
            return {**self.answer, "status": "refused", "reason": state["refused"], **self._streams(0.0)}
        self.token = os.urandom(32)
        if tested:
            tests = receive(0)
            null = os.open("/dev/null", os.O_RDWR)
            check = [ours["back"], theirs["forth"], theirs["verdict"]]
            start_cell(
                {**self.settings, "required": []},
                [null, null, null, *check],
                lambda: running.run_tests(tests["tests"], tests["setup"], tests["functions"], 3, 4, 5),
                None,
                None,
            )
        else:
            os.write(theirs["forth"], self.token)
        for descriptor in (theirs["forth"], theirs["back"], theirs["verdict"], ours["back"], ours["forth"]):
            os.close(descriptor)
        os.write(theirs["go"], b"g")
        return self._watch(ours)

    def _watch(self, ours: dict[str, int]) -> dict[str, Any]:
        """Read until there is a verdict, an ending, too much output, or no time left."""
        start = time.monotonic()
        end = start + self.limits["seconds"]
        selector = selectors.DefaultSelector()
        for name in ("stdout", "stderr", "verdict", "alive"):
            os.set_blocking(ours[name], False)
            selector.register(ours[name], selectors.EVENT_READ, name)
        found: dict[str, Any] | None = None
        while found is None:
            left = end - time.monotonic()
            if left <= 0:
                found = {"status": "timeout", "reason": f"not done after {self.limits['seconds']:g} seconds"}
                break
            ready = {key.data for key, _ in selector.select(min(left, INTERVAL))}
            for name in ready & set(self.output):
                if not self._read(ours[name], name):
                    selector.unregister(ours[name])
            if sum(map(len, self.output.values())) > self.limits["output"]:
                found = {"status": "output", "reason": f"more than {self.limits['output']} bytes of output"}
            elif self.limits["processes"] and resident(os.getpid()) > self.limits["memory"]:
                found = {"status": "memory", "reason": "its processes together had more memory than the limit"}
            elif "root folder" not in self.answer["layers"] and stored(self.settings["folder"]) > self.limits["disk"]:
                found = {"status": "failed", "reason": f"more than {self.limits['disk']} bytes in its folder"}
            elif "verdict" in ready:
                found = self._judge(ours)
            elif "alive" in ready:
                found = self._ended(ours)
        seconds = time.monotonic() - start
        self.cpu_seconds = used_by_the_dead() + used_by_the_living(os.getpid())
        kill_descendants()
        for name in self.output:
            self._read(ours[name], name)
        return {**self.answer, **found, **self._streams(seconds)}

    def _judge(self, ours: dict[str, int]) -> dict[str, Any]:
        """What the message on the verdict's pipe amounts to."""
        os.set_blocking(ours["verdict"], True)
        try:
            message = receive(ours["verdict"])
        except (EOFError, ValueError):
            return self._ended(ours)
        if not isinstance(message, dict):
            return {"status": "failed", "reason": "the program wrote to the sandbox's own pipe"}
        passed = message.get("passed") is True if self.settings["tested"] else message.get("token") == self.token.hex()
        if passed:
            return {"status": "passed", "reason": ""}
        if message.get("error") == "ProgramEnded":
            return self._ended(ours)
        status = "memory" if message.get("error") == "MemoryError" else "failed"
        return {"status": status, "reason": str(message.get("reason", "the verdict was forged"))[:1000]}

    def _ended(self, ours: dict[str, int]) -> dict[str, Any]:
        """Why the program's process is gone without a verdict."""
        os.set_blocking(ours["alive"], True)
        code = -signal.SIGKILL
        known = bool(select.select([ours["alive"]], [], [], 1.0)[0])
        if known:
            try:
                code = int(receive(ours["alive"])["code"])
            except EOFError:
                known = False
        kill_descendants()
        used = used_by_the_dead()
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and used >= self.limits["cpu_seconds"]):
            return {"status": "timeout", "reason": f"more than {self.limits['cpu_seconds']:g} seconds of CPU time"}
        if not known:
            return {"status": "failed", "reason": "the process of the tests ended before there was a verdict"}
        if code < 0:
            return {"status": "failed", "reason": f"killed by {signal.Signals(-code).name}"}
        return {"status": "failed", "reason": f"left with exit code {code} before its end"}

    def _read(self, descriptor: int, name: str) -> bool:
        """Take what is there; False at the end of the stream."""
        limit = self.limits["output"] + 1
        try:
            while len(self.output[name]) < limit:
                part = os.read(descriptor, 1 << 16)
                if not part:
                    return False
                self.output[name] += part
        except BlockingIOError:
            pass
        return True

    def _streams(self, seconds: float) -> dict[str, Any]:
        limit = self.limits["output"]
        kept = {name: bytes(data[:limit]).decode("utf-8", "replace") for name, data in self.output.items()}
        return {**kept, "seconds": seconds}
