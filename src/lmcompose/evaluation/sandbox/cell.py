"""One process behind all layers: how it is set up, what it must have before it may run, and how it starts."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from . import layers, seccomp
from .wire import receive, send

REQUIRED = {
    "network": ("network namespace", "seccomp"),
    "files": ("root folder", "landlock"),
    "signals": ("process namespace", "seccomp"),
    "processes": ("process limit", "seccomp"),
}
"""What must hold, and the layers of which one is enough."""


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
