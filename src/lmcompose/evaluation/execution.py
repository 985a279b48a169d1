"""Run programs that a model wrote, in a sandbox, and judge them: for pass@k on HumanEval, MBPP and their like.

A program runs in a process of its own without network, with an empty folder, and within limits; `sandbox/` builds it.
Where the machine cannot guard what has to be guarded, nothing is run. Nothing is run either unless the user allows it.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lmcompose.errors import ConfigurationError, LmcomposeError
from lmcompose.evaluation.pass_at_k import mean_pass_at_k

ENVIRONMENT = "LMCOMPOSE_ALLOW_CODE_EXECUTION"
"""The environment variable that allows running model-written code where it is 1."""

FLAG = "--allow-code-execution"
"""The option of commands that allows the same."""

GUARDS = ("network", "files", "signals", "processes")
"""What a machine has to guard before a program is run."""

LAYERS = ("user nobody", "namespaces", "root folder", "no new privileges", "landlock", "no capabilities", "seccomp")
"""The layers that can be switched off, to see what the others do alone."""

Status = Literal["passed", "failed", "timeout", "memory", "output", "refused"]

_GRACE = 60.0
"""Seconds beyond a program's own that setting up and clearing away may take on a busy machine."""

_SANDBOX = Path(__file__).parent / "sandbox"
_START = (
    "import importlib.util, sys; folder = sys.argv[1];"
    "spec = importlib.util.spec_from_file_location("
    "'sandbox', folder + '/__init__.py', submodule_search_locations=[folder]);"
    "sys.modules['sandbox'] = importlib.util.module_from_spec(spec);"
    "from sandbox.supervisor import main; main()"
)


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of wall time, from its first line on; as many of CPU time, rounded up, for each process.
        memory: bytes of address space of each process, and of memory of all its processes together.
        output: bytes of standard output and standard error together; what is beyond is cut, and the program stopped.
        processes: how many the program may start; 0 allows none.
        threads: how many the program may start.
        disk: bytes of its folder, and of each file.
    """

    seconds: float = 10.0
    memory: int = 1 << 30
    output: int = 1 << 16
    processes: int = 0
    threads: int = 32
    disk: int = 1 << 26

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigurationError(f"The time limit {self.seconds} has to be a number of seconds above 0.")
        for name in ("memory", "output", "disk"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"The limit {name}={getattr(self, name)} has to be a number of bytes above 0.")
        for name in ("processes", "threads"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"The limit {name}={getattr(self, name)} cannot be negative.")


@dataclass(frozen=True)
class Program:
    """A program, and what it is judged by.

    Attributes:
        source: Python that a model wrote. It is never run where the tests are.
        tests: Python that calls functions of the program and asserts what they return; it runs in a process of its own.
            Without tests the program passes when it reaches its last line.
        setup: Python that the tests need and that does not come from the model, such as imports and helpers.
        functions: the program's names that the tests use. Default: all that hide no built-in of Python.
        stdin: what the program reads from standard input.
    """

    source: str
    tests: str = ""
    setup: str = ""
    functions: Sequence[str] = ()
    stdin: str = ""


@dataclass(frozen=True)
class Verdict:
    """How a program did.

    Attributes:
        status: "passed", "failed", "timeout", "memory" (it ran out of it), "output" (too much of it), or "refused": the
            program was not run, because the machine lacks what would guard it.
        reason: one line; empty where the program passed.
        stdout, stderr: what the program printed, each cut at the limit.
        seconds: of wall time from the program's first line on.
        cpu_seconds: of the program, its tests, and the sandbox around them.
        layers: what stood between the program and the machine.
        missing: layers that the machine does not have, and why.
    """

    status: Status
    reason: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    layers: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def allowed(allow: bool = False) -> bool:
    """Whether the user allows running model-written code: by the argument, or by the environment variable."""
    return allow or os.environ.get(ENVIRONMENT) == "1"


def check_allowed(allow: bool = False, argument: str = "allow=True") -> None:
    """Raise unless the user allows running model-written code.

    Args:
        argument: what allows it in Python, for the message.

    Raises:
        ConfigurationError: neither the argument nor the environment variable allows it.
    """
    if not allowed(allow):
        raise ConfigurationError(
            "This runs code that a model wrote. It runs in a sandbox (docs/sandbox.md), but only where you allow it: "
            f"set {ENVIRONMENT}=1, pass {argument} in Python, or give {FLAG} on the command line."
        )


def check_sandbox() -> None:
    """Raise unless this machine can guard what has to be guarded, so that it is known before hours of generation.

    Raises:
        ConfigurationError: it cannot.
        LmcomposeError: the sandbox itself failed.
    """
    verdict = run_program("pass", allow=True)  # of our own writing
    if verdict.status == "refused":
        raise ConfigurationError(f"Programs cannot be run here: {verdict.reason}. See docs/sandbox.md.")


def run_program(
    source: str | Program,
    tests: str = "",
    *,
    setup: str = "",
    functions: Sequence[str] = (),
    stdin: str = "",
    limits: Limits | None = None,
    allow: bool = False,
    required: Sequence[str] = GUARDS,
    without: Sequence[str] = (),
) -> Verdict:
    """Run one program in the sandbox.

    Args:
        source, tests, setup, functions, stdin: as in `Program`, which can be given instead.
        limits: default `Limits()`.
        allow: the user allows running model-written code.
        required: what of `GUARDS` the machine has to guard. To leave one out runs the program without that guard.
        without: layers of `LAYERS` to switch off.

    Raises:
        ConfigurationError: it is not allowed, or `required` or `without` has a name that there is none of.
        LmcomposeError: the sandbox itself failed.
    """
    check_allowed(allow)
    for names, known, what in ((required, GUARDS, "required"), (without, LAYERS, "without")):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ConfigurationError(f"{what}: '{unknown[0]}' is none of {', '.join(known)}.")
    if not sys.platform.startswith("linux"):
        return Verdict("refused", f"The sandbox needs Linux; this is {sys.platform}. Use a Linux machine or container.")
    given = source if isinstance(source, Program) else Program(source, tests, setup, functions, stdin)
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="lmcompose-", ignore_cleanup_errors=True) as folder:
        settings = {
            "source": given.source,
            "stdin": given.stdin,
            "tested": bool(given.tests),
            "folder": folder,
            "limits": {**asdict(limits), "cpu_seconds": math.ceil(limits.seconds), "file_size": limits.disk},
            "required": list(required),
            "without": list(without),
        }
        judged = {"tests": given.tests, "setup": given.setup, "functions": list(given.functions)}
        answer = _supervise([settings, judged], limits.seconds + _GRACE)
    return Verdict(**{**answer, "layers": tuple(answer["layers"])})


def run_programs(
    programs: Sequence[Program],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    allow: bool = False,
    required: Sequence[str] = GUARDS,
) -> list[Verdict]:
    """Run many programs, several at a time, each in a sandbox of its own.

    Args:
        workers: how many run at a time. Default: the number of cores. More make honest programs run out of time.
        progress: called after each program with how many are done, and of how many.

    Returns:
        The verdicts in the order of the programs.

    Raises:
        ConfigurationError: as for `run_program`, or a program was refused: that is no failure of the program, and a
            score that counted it as one would be wrong.
    """
    check_allowed(allow)
    if workers is not None and workers < 1:
        raise ConfigurationError(f"workers={workers} has to be 1 or more.")
    verdicts: dict[int, Verdict] = {}
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        futures = {
            pool.submit(run_program, program, limits=limits, allow=allow, required=required): index
            for index, program in enumerate(programs)
        }
        try:
            for future in as_completed(futures):
                verdict = future.result()
                if verdict.status == "refused":
                    raise ConfigurationError(f"No program was judged: {verdict.reason}. See docs/sandbox.md.")
                verdicts[futures[future]] = verdict
                if progress:
                    progress(len(verdicts), len(programs))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [verdicts[index] for index in range(len(programs))]


@dataclass(frozen=True)
class Score:
    """pass@k of problems.

    Attributes:
        pass_at: k -> the mean over the problems of the estimate of Chen et al. (arXiv 2107.03374, equation 1).
        verdicts: one list for each problem, in its programs' order.
    """

    pass_at: dict[int, float]
    verdicts: list[list[Verdict]]


def score_problems(
    problems: Sequence[Sequence[Program]],
    k: Sequence[int] = (1,),
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    allow: bool = False,
) -> Score:
    """Run the programs of many problems and estimate pass@k for each k.

    Args:
        problems: for each problem the programs that were drawn for it, at least max(k) of them.

    Raises:
        ConfigurationError: as for `run_programs`, or a program has no tests, or a problem has fewer programs than a k
            asks for; known before any program is run.
    """
    check_allowed(allow)
    if any(not program.tests for programs in problems for program in programs):
        raise ConfigurationError(
            "pass@k needs the tests of each program in `tests`: there they run in a process of their own, and the "
            "program cannot forge what they say."
        )
    for each in k:
        mean_pass_at_k([(len(programs), 0) for programs in problems], each)
    flat = [program for programs in problems for program in programs]
    found = iter(run_programs(flat, limits=limits, workers=workers, progress=progress, allow=allow))
    verdicts = [[next(found) for _ in programs] for programs in problems]
    counts = [(len(group), sum(verdict.passed for verdict in group)) for group in verdicts]
    return Score({each: mean_pass_at_k(counts, each) for each in k}, verdicts)


def _supervise(messages: Sequence[Any], seconds: float) -> dict[str, Any]:
    """Start the sandbox's own process, tell it what to run, and return its answer."""
    texts = [json.dumps(message).encode() for message in messages]
    data = b"".join(len(text).to_bytes(8, "big") + text for text in texts)
    process = subprocess.Popen(
        # -I and -S: nothing from the environment, the user's site or the working folder is imported.
        [sys.executable, "-I", "-S", "-c", _START, str(_SANDBOX)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        answer, errors = process.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise LmcomposeError(f"The sandbox gave no verdict within {seconds:g} seconds and was killed.") from None
    finally:
        if process.poll() is None:
            process.kill()  # and with it, by the kernel, all that it started
            process.communicate()
    if process.returncode or len(answer) < 8:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise LmcomposeError(f"The sandbox failed: {lines[-1] if lines else f'exit code {process.returncode}'}")
    result: dict[str, Any] = json.loads(answer[8:])
    return result
