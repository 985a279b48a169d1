"""The process between lmcompose and the program: it builds the sandbox, watches, kills, and says what happened.

It reads one message of settings and, after the program has been started, one with the tests, so that the program's
process, which is a copy of this one, has never held them. It writes one message with the verdict.
"""

import os
import resource
import select
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from . import layers, running, seccomp
from .wire import receive, send

REQUIRED = {
    "network": ("network namespace", "seccomp"),
    "files": ("root folder", "landlock"),
    "signals": ("process namespace", "seccomp"),
    "processes": ("process limit", "seccomp"),
}
"""What must hold, and the layers of which one is enough."""

INTERVAL = 0.05
"""Seconds between two looks at the memory of all processes together."""


def main() -> None:
    """Run one program as the message on standard input says, and answer on standard output."""
    layers.die_with_parent()
    layers.adopt_orphans()
    settings = receive(0)
    answer = Run(settings).verdict()
    kill_descendants()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    send(1, answer)


class Run:
    """One program, its tests if it has any, and what has been seen of them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.limits = settings["limits"]
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.answer: dict[str, Any] = {"layers": [], "missing": {}}

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
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = usage.ru_utime + usage.ru_stime
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


def start_cell(
    settings: dict[str, Any],
    descriptors: list[int],
    job: Callable[[], NoReturn],
    go: int | None,
    alive: int | None,
) -> dict[str, Any]:
    """Start a process behind all layers that `settings` asks for and the machine has, and run `job` in it.

    Args:
        descriptors: what the process has as 0, 1, 2, ...; it has no others.
        go: it starts when it can read there.
        alive: it is told there how the process ended.

    Returns:
        The layers that are active, and why others are missing; under "refused" why the process does not run.
    """
    waits, ready = os.pipe()
    if os.fork():
        os.close(ready)
        try:
            state: dict[str, Any] = receive(waits)
        except EOFError:
            state = {"refused": "the sandbox's process ended while it was set up"}
        os.close(waits)
        return state
    os.close(waits)
    code = 1
    try:
        _outer(settings, descriptors, job, ready, go, alive)
        code = 0
    except BaseException as error:
        send(ready, {"refused": f"the sandbox could not be set up: {error!r}"})
        traceback.print_exc()
    finally:
        os._exit(code)


def _outer(
    settings: dict[str, Any],
    descriptors: list[int],
    job: Callable[[], NoReturn],
    ready: int,
    go: int | None,
    alive: int | None,
) -> None:
    """The process that stays outside of the new namespaces and waits."""
    parent = os.getppid()
    layers.die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    active: list[str] = []
    missing: dict[str, str] = {}

    def attempt(name: str, step: Callable[[], object]) -> bool:
        if name in settings["without"]:
            missing[name] = "switched off"
            return False
        try:
            step()
        except OSError as error:
            missing[name] = str(error)
            return False
        active.append(name)
        return True

    forks = settings["limits"]["processes"] > 0
    paths = [*layers.readable_paths(forks), *filter(os.path.exists, layers.DEVICES)]
    folder = os.open(settings["folder"], os.O_PATH | os.O_DIRECTORY)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    size = settings["limits"]["disk"]
    if os.getuid() == 0:
        # No limit on processes holds root. Root builds the folder first, as nobody may be unable to read this Python.
        def root_folder() -> None:
            layers.new_mounts()
            layers.new_root(paths, size, layers.NOBODY)

        if attempt("root folder", root_folder) or layers.readable_by_all(os.path.dirname(os.__file__)):
            os.chown(settings["folder"], layers.NOBODY, layers.NOBODY) if "root folder" not in active else None
            attempt("user nobody", layers.become_nobody)
            layers.die_with_parent()
        namespaces = attempt("namespaces", lambda: layers.new_namespaces(proc))
    else:
        namespaces = attempt("namespaces", lambda: layers.new_namespaces(proc))
        if namespaces:
            attempt("root folder", lambda: layers.new_root(paths, size, os.getuid()))
    if namespaces:
        active.remove("namespaces")
        active += ["network namespace", "process namespace"]
    if "root folder" not in active:
        os.fchdir(folder)
    base = 3 if namespaces else layers.tasks_of(os.getuid(), proc)
    inner = os.fork()
    if inner:
        for descriptor in set(descriptors):
            os.close(descriptor)
        os.close(ready)
        _, status = os.waitpid(inner, 0)
        if alive is not None:
            code = os.waitstatus_to_exitcode(status)
            send(alive, {"code": code - 256 if code > 128 else code})
        return
    layers.die_with_parent()
    worker = os.fork()
    if worker:
        _stand_by(worker)
    layers.die_with_parent()
    os.setsid()
    if os.getuid():
        active.append("process limit")
    _close_in(layers.opened(paths), folder, attempt, active, missing, settings, base)
    refused = _refusal(settings, active, missing)
    if refused:
        send(ready, {"refused": refused, "layers": active, "missing": missing})
        os._exit(1)
    send(ready, {"layers": active, "missing": missing})
    if go is not None:
        os.read(go, 1)
    _only(descriptors)
    os.environ.clear()
    sys.argv[:] = ["program.py"]
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - for its whole life
        for number, mode in enumerate("rww")
    )
    job()


def _close_in(
    sources: list[tuple[str, int]],
    folder: int,
    attempt: Callable[[str, Callable[[], object]], bool],
    active: list[str],
    missing: dict[str, str],
    settings: dict[str, Any],
    base: int,
) -> None:
    """The layers that the process puts on itself, from the weakest to the one that ends all further setting up."""
    limits = settings["limits"]
    forks = limits["processes"] > 0
    attempt("no new privileges", layers.no_new_privileges)
    own_root = "root folder" in active
    readable = [number for path, number in sources if not path.startswith("/dev/")]
    devices = [number for path, number in sources if path.startswith("/dev/")]
    if own_root:
        # After the change of root the old descriptors still mean the same files; the work folder is a new one.
        folder = os.open(layers.WORK, os.O_PATH | os.O_DIRECTORY)
    attempt("landlock", lambda: layers.landlock(readable, [folder], devices, forks))
    attempt("no capabilities", layers.drop_capabilities)
    layers.limit(
        limits["memory"], limits["cpu_seconds"], limits["file_size"], 64, base + limits["processes"] + limits["threads"]
    )

    def filtered() -> None:
        seccomp.install(
            seccomp.program(
                seccomp.machine(),
                fork=forks,
                own_root=own_root,
                own_pids="process namespace" in active,
                pid=os.getpid(),
            )
        )

    attempt("seccomp", filtered)
    active.append("limits")


def _refusal(settings: dict[str, Any], active: list[str], missing: dict[str, str]) -> str:
    """Why the program must not run here, or an empty text."""
    for what in settings["required"]:
        enough = [name for name in REQUIRED[what] if name in active]
        if what == "processes" and settings["limits"]["processes"]:
            enough = [name for name in enough if name != "seccomp"]  # the filter then lets every fork through
        if not enough:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items()) or "the user is root"
            return f"nothing on this machine guards {what} ({reasons})"
    try:
        with open(os.__file__, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"the sandbox cannot read Python's own library ({error}); run as a user other than root"
    return ""


def _stand_by(worker: int) -> NoReturn:
    """The first process of the namespace: collect what ends, and end when the program does, which ends all others."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 256 + code)


def _only(descriptors: list[int]) -> None:
    """Have these descriptors as 0, 1, 2, ... and no others."""
    high = [os.dup(descriptor) for descriptor in descriptors]
    base = max(*high, len(descriptors)) + 1
    moved = [os.dup2(descriptor, base + index) for index, descriptor in enumerate(high)]
    for index, descriptor in enumerate(moved):
        os.dup2(descriptor, index)
    os.closerange(len(descriptors), 1 << 12)


def descendants(root: int) -> list[int]:
    """Every process below `root`."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it ended meanwhile
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def resident(root: int) -> int:
    """Bytes of memory of all processes below `root`."""
    pages = 0
    for pid in descendants(root):
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                numbers = file.read().split()
            pages += int(numbers[1]) - int(numbers[2])
        except (OSError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def stored(folder: str) -> int:
    """Bytes on the disk below a folder."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                continue  # it was deleted meanwhile
    return total


def kill_descendants() -> None:
    """Kill every process below this one until none is left. Orphans come to this process, so none escapes it."""
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)
