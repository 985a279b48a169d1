"""Model-written code runs in the sandbox, judged rightly, and nothing gets out.

Each hostile program is run by `attack`, which then runs an honest one: an attack may not spoil what comes after it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation import execution
from lmcompose.evaluation.execution import GUARDS, Limits, Program, Verdict, run_program, run_programs, score_problems
from lmcompose.evaluation.sandbox.cell import REQUIRED
from lmcompose.evaluation.sandbox.processes import descendants

FALLBACK = ("namespaces", "root folder")
"""Without these a machine has to do with Landlock, seccomp and the limits, as in many containers."""

HONEST = Program("def double(x):\n    return 2 * x", "assert double(21) == 42\nassert double('a') == 'aa'")


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(execution.ENVIRONMENT, "1")


@pytest.fixture(scope="module", autouse=True)
def machine() -> Verdict:
    """The layers of this machine, once; a machine that cannot guard what has to be guarded skips all of this file."""
    verdict = run_program("pass", allow=True)
    if verdict.status == "refused":
        pytest.skip(verdict.reason)
    assert verdict.passed
    return verdict


@pytest.fixture(params=[(), FALLBACK], ids=["all-layers", "no-namespaces"])
def without(request: pytest.FixtureRequest, machine: Verdict) -> tuple[str, ...]:
    """Layers that are switched off; skips where the machine has not the others."""
    names: tuple[str, ...] = request.param
    if names:
        need(machine, "landlock", "seccomp")
    else:
        need(machine, "network namespace", "root folder")
    return names


def need(machine: Verdict, *names: str) -> None:
    for name in names:
        if name not in machine.layers:
            pytest.skip(f"this machine has no layer '{name}': {dict(machine.missing)}")


def attack(source: str, tests: str = "", **options: object) -> Verdict:
    """Run a hostile program; whatever it did, the sandbox is empty afterwards and an honest program passes."""
    without = options.get("without", ())
    verdict = run_program(source, tests, **options)  # type: ignore[arg-type]
    assert not [pid for pid in descendants(os.getpid()) if b"sandbox" in command_of(pid)], "processes are left over"
    after = run_program(HONEST, without=without)  # type: ignore[arg-type]
    assert after.passed, after
    return verdict


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def seen(verdict: Verdict) -> dict[str, object]:
    """What a program printed as JSON on its last line."""
    found: dict[str, object] = json.loads(verdict.stdout.strip().splitlines()[-1])
    return found


TRY = """
import json, os, signal, socket, sys
seen = {}
def attempt(name, action):
    try:
        seen[name] = repr(action())
    except BaseException as error:
        seen[name] = type(error).__name__
"""
"""The beginning of programs that try things and print what came of each."""


# ------------------------------------------------------------------------------------------------ files


def test_files_outside_cannot_be_read_or_changed(tmp_path: Path, without: tuple[str, ...]) -> None:
    secret = tmp_path / ".ssh" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text("the secret key")
    before = secret.stat()
    verdict = attack(
        TRY
        + f"""
secret = {str(secret)!r}
attempt("read", lambda: open(secret).read())
attempt("write", lambda: open(secret, "w"))
attempt("append", lambda: open(secret, "a"))
attempt("truncate", lambda: os.truncate(secret, 0))
attempt("delete", lambda: os.remove(secret))
attempt("rename", lambda: os.rename(secret, "mine"))
attempt("link", lambda: os.link(secret, "mine"))
attempt("mode", lambda: os.chmod(secret, 0o777))
attempt("times", lambda: os.utime(secret, (0, 0)))
attempt("create", lambda: open(os.path.dirname(secret) + "/new", "w"))
attempt("folder", lambda: os.mkdir(os.path.dirname(secret) + "/new"))
attempt("list", lambda: os.listdir(os.path.dirname(secret)))
os.symlink(secret, "way-out")
attempt("symlink", lambda: open("way-out").read())
attempt("symlink write", lambda: open("way-out", "w"))
os.symlink(os.path.dirname(secret), "folder-out")
attempt("symlink folder", lambda: open("folder-out/new", "w"))
attempt("up", lambda: open("../../../../.." + secret).read())
attempt("passwords", lambda: open("/etc/passwd").read())
attempt("library", lambda: open(os.__file__, "a"))
attempt("device", lambda: os.mknod("device", 0o60600, os.makedev(254, 0)))
print(json.dumps(seen))
""",
        without=without,
    )
    assert verdict.passed, verdict
    got_in = {name: what for name, what in seen(verdict).items() if not str(what).endswith("Error")}
    assert not got_in
    after = secret.stat()
    assert secret.read_text() == "the secret key"
    assert (after.st_mode, after.st_mtime, list(secret.parent.iterdir())) == (before.st_mode, before.st_mtime, [secret])


def test_deleting_everything_deletes_nothing(tmp_path: Path, without: tuple[str, ...]) -> None:
    (tmp_path / "kept").write_text("kept")
    verdict = attack(
        f"""
import json, os, shutil
open("own", "w").write("own")
for folder in ({str(tmp_path)!r}, os.path.dirname(json.__file__), "/tmp", "/"):
    shutil.rmtree(folder, ignore_errors=True)
os.system("rm -rf " + {str(tmp_path)!r})
""",
        without=without,
    )
    assert verdict.passed or "PermissionError" in verdict.reason
    assert (tmp_path / "kept").read_text() == "kept"
    assert Path(json.__file__).exists()


def test_its_own_folder_is_empty_writable_and_gone_afterwards(without: tuple[str, ...]) -> None:
    source = """
import os
print(os.listdir("."))
open("a", "w").write("text")
os.mkdir("b")
os.rename("a", "b/a")
print(open("b/a").read(), os.getcwd())
"""
    for _ in range(2):  # the second finds nothing of the first
        verdict = run_program(source, without=without)
        assert verdict.passed, verdict
        first, second = verdict.stdout.splitlines()
        assert (first, second.split()[0]) == ("[]", "text")
    assert not Path(second.split()[1], "b").exists()


def test_a_file_of_ten_gigabytes_is_not_written(without: tuple[str, ...]) -> None:
    limits = Limits(seconds=20, disk=1 << 22)
    source = """
with open("big", "wb", buffering=0) as file:
    for _ in range(10_000):
        assert file.write(bytes(1 << 20))
"""
    verdict = attack(source, limits=limits, without=without)
    assert verdict.status == "failed"
    assert "OSError" in verdict.reason or "in its folder" in verdict.reason or "Assert" in verdict.reason


def test_many_files_do_not_fill_the_disk(without: tuple[str, ...]) -> None:
    source = """
import time
for index in range(10_000):
    open(str(index), "wb").write(bytes(1 << 19))
    time.sleep(0.01)
"""
    verdict = attack(source, limits=Limits(seconds=20, disk=1 << 21), without=without)
    assert verdict.status == "failed"
    assert "No space" in verdict.reason or "in its folder" in verdict.reason


# ------------------------------------------------------------------------------------------------ network


@contextlib.contextmanager
def listening(family: int, address: object) -> Iterator[tuple[object, list[object]]]:
    """A server; the list fills with what connects or sends."""
    calls: list[object] = []
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)  # type: ignore[arg-type]
        server.listen()
        server.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    calls.append(server.accept())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname(), calls
        finally:
            over.set()
            thread.join()


def test_no_socket_reaches_a_server(tmp_path: Path, without: tuple[str, ...]) -> None:
    path = str(tmp_path / "s")
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as (where, calls),
        listening(socket.AF_UNIX, path) as (_, local),
        listening(socket.AF_UNIX, "\0lmcompose-test") as (_, abstract),
    ):
        source = f"""
attempt("tcp", lambda: socket.create_connection({tuple(where)!r}, timeout=2))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
attempt("server", lambda: socket.create_server(("127.0.0.1", 0)))
attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", {tuple(where)!r}))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect({path!r}))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0lmcompose-test"))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("kernel", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
print(json.dumps(seen))
"""
        for off in (without, (*without, "landlock")) if not without else (without,):
            verdict = attack(TRY + source, without=off)
            assert verdict.passed, verdict
            assert all(str(what).endswith(("Error", "gaierror")) for what in seen(verdict).values()), verdict.stdout
        assert (calls, local, abstract) == ([], [], [])
        with socket.create_connection(where):  # type: ignore[arg-type]
            time.sleep(0.2)
        assert calls, "the server would have seen it"


def test_the_network_namespace_alone_reaches_no_server(machine: Verdict) -> None:
    """The same without the filter: each of the two layers is enough."""
    need(machine, "network namespace")
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as (where, calls):
        source = TRY + f"attempt('tcp', lambda: socket.create_connection({tuple(where)!r}, 2))\nprint(json.dumps(seen))"
        verdict = attack(source, without=("seccomp", "landlock"))
        assert verdict.passed
        assert seen(verdict)["tcp"] == "OSError"
        assert not calls


# ------------------------------------------------------------------------------------------------ signals, processes


def test_signals_reach_nobody(without: tuple[str, ...]) -> None:
    bystander = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        verdict = attack(
            TRY
            + f"""
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for name, pid in (("parent", os.getppid()), ("tester", {os.getpid()}), ("bystander", {bystander.pid}), ("init", 1)):
    for number in (signal.SIGUSR1, signal.SIGKILL):
        if pid not in (0, os.getpid()):
            attempt(name, lambda: os.kill(pid, number))
attempt("group", lambda: os.killpg(os.getpgid(os.getppid()), signal.SIGUSR1))
attempt("own group", lambda: os.kill(0, signal.SIGUSR1))
attempt("all", lambda: os.kill(-1, signal.SIGKILL))
print(json.dumps(seen))
""",
            without=without,
        )
        assert verdict.passed, verdict
        assert bystander.poll() is None
        assert not received
    finally:
        signal.signal(signal.SIGUSR1, before)
        bystander.kill()
        bystander.wait()


def test_other_processes_cannot_be_read_or_traced(monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...]) -> None:
    monkeypatch.setenv("MY_API_KEY", "the secret token")
    verdict = attack(
        TRY
        + f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
for name, pid in (("parent", os.getppid()), ("tester", {os.getpid()})):
    for file in ("environ", "mem", "maps", "cmdline", "fd/0", "root/etc/passwd"):
        attempt(name + " " + file, lambda: open(f"/proc/{{pid}}/{{file}}", "rb").read())
    attempt(name + " trace", lambda: call("ptrace", 16, pid, None, None))
    attempt(name + " pidfd", lambda: os.pidfd_open(pid))
attempt("own environ", lambda: open("/proc/self/environ").read())
attempt("mount", lambda: call("mount", b"proc", b".", b"proc", 0, None))
attempt("chroot", lambda: os.chroot("."))
attempt("namespace", lambda: call("unshare", 0x10000000))
attempt("shared memory", lambda: call("shmget", 0, 4096, 0o1600))
attempt("memory file", lambda: os.memfd_create("x"))
attempt("raise limits", lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_AS, (-1, -1)))
print(json.dumps({{"tries": seen, "environment": dict(os.environ), "user": os.getuid()}}))
""",
        without=without,
    )
    assert verdict.passed, verdict
    report = seen(verdict)
    assert report["environment"] == {}
    assert not {name: what for name, what in report["tries"].items() if not what.endswith("Error")}  # type: ignore[attr-defined]
    assert "the secret token" not in verdict.stdout + verdict.stderr


def test_a_program_has_no_descriptors_of_others(tmp_path: Path, without: tuple[str, ...]) -> None:
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        verdict = attack(
            """
import os, json
found = []
for number in range(5, 4096):
    try:
        os.fstat(number)
        found.append(number)
    except OSError:
        pass
print(json.dumps({"found": found}))
""",
            without=without,
        )
    assert seen(verdict) == {"found": []}


# ------------------------------------------------------------------------------------------------ exhaustion

BOMBS: dict[str, tuple[str, set[str]]] = {
    "endless loop": ("while True: pass", {"timeout"}),
    "endless loop that ignores signals": (
        "import signal\n"
        "for n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\n"
        "while True: pass",
        {"timeout"},
    ),
    "endless loop that catches everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        {"timeout"},
    ),
    "sleep": ("import time\ntime.sleep(100)", {"timeout"}),
    "endless output": ("while True: print('x' * 1000)", {"output"}),
    "endless errors": ("import os\nwhile True: os.write(2, b'x' * 1000)", {"output"}),
    "huge allocation": ("x = bytearray(10 ** 11)", {"memory"}),
    "growing allocation": ("x = []\nwhile True: x.append(bytearray(10 ** 7))", {"memory"}),
    "huge mapping": ("import mmap\nx = mmap.mmap(-1, 10 ** 11)", {"failed"}),
    "recursion": ("def f(): f()\nf()", {"failed"}),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\n"
        "class A:\n    def __getattr__(self, n): return getattr(self, n)\n"
        "A().x",
        {"failed", "memory"},
    ),
    "huge integer": ("x = 10 ** (10 ** 9)", {"timeout", "memory"}),
    "fork bomb": ("import os\nwhile True: os.fork()", {"failed"}),
    "shell": ("import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'], check=True)", {"failed"}),
    "thread bomb": (
        "import threading, time\nfor _ in range(10_000): threading.Thread(target=time.sleep, args=(9,)).start()",
        {"failed"},
    ),
    "file bomb": ("x = [open('a', 'w') for _ in range(10 ** 5)]", {"failed"}),
    "crash": ("import ctypes\nctypes.string_at(0)", {"failed"}),
    "abort": ("import os\nos.abort()", {"failed"}),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", {"failed"}),
    "not Python": ("def f(:", {"failed"}),
    "null bytes": ("x = '\0'", {"failed"}),
}


@pytest.fixture(scope="module")
def bombs(machine: Verdict) -> dict[str, Verdict]:
    """All bombs at once, two at a time, with honest programs between them: that is what a bomb must not spoil."""
    limits = Limits(seconds=3.0, memory=3 << 25)
    programs: list[Program] = []
    for source, _ in BOMBS.values():
        programs += [Program(source), HONEST]
    verdicts = run_programs(programs, limits=limits, workers=4, allow=True)
    assert all(verdict.passed for verdict in verdicts[1::2]), [v for v in verdicts[1::2] if not v.passed]
    return dict(zip(BOMBS, verdicts[::2], strict=True))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_and_named(bombs: dict[str, Verdict], name: str) -> None:
    verdict = bombs[name]
    assert verdict.status in BOMBS[name][1], verdict
    assert verdict.reason
    assert len(verdict.stdout) + len(verdict.stderr) <= 2 * Limits().output
    assert verdict.seconds < 10


FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        while True:
            time.sleep(0.01)
    os._exit(0)
os.wait()
print("started")
"""


def test_a_fork_bomb_that_may_fork_is_killed_to_the_last(machine: Verdict) -> None:
    need(machine, "process limit")
    verdict = attack(FORK_BOMB, limits=Limits(seconds=1, processes=8, threads=0))
    assert verdict.status == "timeout"


@pytest.mark.parametrize("off", [(), ("namespaces",)], ids=["namespaces", "no-namespaces"])
def test_a_process_that_leaves_its_group_dies_too(machine: Verdict, off: tuple[str, ...]) -> None:
    need(machine, "process limit")
    before = set(os.listdir("/proc"))
    verdict = attack(ESCAPE, limits=Limits(processes=2), without=off, required=())
    assert verdict.passed, verdict
    assert verdict.stdout == "started\n"
    time.sleep(0.1)
    left = [pid for pid in set(os.listdir("/proc")) - before if pid.isdigit() and b"sandbox" in command_of(int(pid))]
    assert not left


def test_memory_is_counted_over_all_processes(machine: Verdict) -> None:
    need(machine, "process limit")
    source = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(2 * 10 ** 7)\ntime.sleep(20)"
    verdict = attack(source, limits=Limits(seconds=15, memory=3 << 25, processes=8))
    assert verdict.status == "memory"


def test_processes_work_where_they_are_allowed(machine: Verdict) -> None:
    need(machine, "process limit")
    source = "import os\npid = os.fork()\nif pid == 0: os._exit(7)\nprint(os.waitpid(pid, 0)[1] >> 8)"
    verdict = run_program(source, limits=Limits(processes=2))
    assert (verdict.status, verdict.stdout) == ("passed", "7\n"), verdict


def test_killing_the_tester_kills_the_program(tmp_path: Path) -> None:
    """A hard kill of the process that asked for the verdict leaves nothing behind."""
    call = "import lmcompose.evaluation.execution as e; e.run_program('while True: pass', limits=e.Limits(seconds=60))"
    package = str(Path(execution.__file__).parent.parent)
    start = (
        f"import sys, types; m = types.ModuleType('lmcompose'); m.__path__ = [{package!r}]"  # without importing torch
    )
    process = subprocess.Popen([sys.executable, "-c", f"{start}; sys.modules['lmcompose'] = m; {call}"])
    deadline = time.monotonic() + 60
    below: list[int] = []
    while len(below) < 4 and time.monotonic() < deadline:  # supervisor, waiting process, first process, program
        below = descendants(process.pid)
        time.sleep(0.05)
    time.sleep(0.3)
    below = descendants(process.pid)
    assert len(below) >= 4
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(command_of(pid) for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in below if command_of(pid)]


# ------------------------------------------------------------------------------------------------ verdicts

FORGE = {
    "prints": "print('passed')\nprint('{\"passed\": true}')",
    "leaves": "import sys\nsys.exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "overrides built-ins": (
        "import builtins, sys\n"
        "builtins.AssertionError = SystemExit\n"
        "builtins.exec = builtins.compile = builtins.isinstance = lambda *a, **k: True\n"
        "sys.excepthook = lambda *a: None\n"
        "builtins.abs = builtins.all = lambda *a: True\n"
        "builtins.BaseException = KeyboardInterrupt"
    ),
    "kills": (
        "import os, signal\n"
        "for pid in (os.getppid(), 1):\n"
        "    try: os.kill(pid, signal.SIGKILL)\n"
        "    except OSError: pass"
    ),
    "writes to every pipe": (
        "import os, json\n"
        'for text in (b\'passed\', b\'{"passed": true}\', b\'{"token": true}\', b\'{"value": {"int": "5"}}\'):\n'
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, len(text).to_bytes(8, 'big') + text)\n"
        "        except OSError: pass"
    ),
    "exits later": (
        "import atexit, os, threading\natexit.register(os._exit, 0)\nthreading.Timer(0.01, os._exit, (0,)).start()"
    ),
    "replaces the sandbox": (
        "import sys\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if 'sandbox' in name or 'running' in name or 'wire' in name:\n"
        "        for key in list(vars(module)): setattr(module, key, lambda *a, **k: True)"
    ),
    "raises its own": ("class E(BaseException):\n    def __str__(self): raise E\n    __repr__ = __str__\nraise E"),
    "traces": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
}
"""Programs that want to be judged as passed; each is followed by a wrong function."""

ALWAYS_EQUAL = """
class Anything(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return 0
    def __sub__(self, other): return 0
def add(a, b): return Anything()
"""


@pytest.fixture(scope="module")
def forged(machine: Verdict) -> dict[str, tuple[Verdict, Verdict]]:
    """Each forger before tests of their own, and with the assertion in the same program; honest programs between."""
    programs: list[Program] = []
    for source in FORGE.values():
        wrong, assertion = source + "\ndef add(a, b):\n    return 0\n", "assert add(2, 3) == 5\n"
        programs += [Program(wrong, assertion), Program(wrong + assertion), HONEST]
    verdicts = run_programs(programs, workers=4, allow=True)
    assert all(verdict.passed for verdict in verdicts[2::3]), [v for v in verdicts[2::3] if not v.passed]
    return dict(zip(FORGE, zip(verdicts[::3], verdicts[1::3], strict=True), strict=True))


@pytest.mark.parametrize("name", FORGE)
def test_a_verdict_is_not_forged(forged: dict[str, tuple[Verdict, Verdict]], name: str) -> None:
    """The second is the weaker promise: without tests the assertion stands at the end of the program itself."""
    with_tests, without_tests = forged[name]
    assert with_tests.status == "failed", with_tests
    assert without_tests.status == "failed", without_tests


CHEATS = [
    ALWAYS_EQUAL,
    ALWAYS_EQUAL.replace("(int)", ""),
    "def add(a, b):\n    import sys, os\n    os._exit(0)",
    "def add(a, b):\n    import sys\n    sys.exit(0)",
    "def add(a, b):\n    raise SystemExit(0)",
    "def add(a, b):\n    raise StopIteration",
    "import builtins\nbuiltins.abs = abs = lambda x: 0\ndef add(a, b): return 0",
    "import math\nmath.fabs = fabs = lambda x: 0\ndef add(a, b): return 0",
    "import gc, os, sys\n"
    "def add(a, b):\n"
    "    for fd in range(3, 64):\n"  # it reads whatever there is and writes it to wherever it can
    "        try:\n"
    "            os.set_blocking(fd, False)\n"
    "            data = os.read(fd, 4096)\n"
    "        except OSError:\n"
    "            data = b'{\"passed\": true}'\n"
    "        for to in range(3, 64):\n"
    "            try: os.write(to, len(data).to_bytes(8, 'big') + data)\n"
    "            except OSError: pass\n"
    "    return 0",
    "import sys\n"
    "def add(a, b):\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n"
    "        for name, value in {**frame.f_globals, **frame.f_locals}.items():\n"
    "            if isinstance(value, dict): value['passed'] = True\n"
    "        frame = frame.f_back\n"
    "    return 0",
]
"""Programs whose function cheats when it is called."""


def test_a_function_that_cheats_does_not_pass() -> None:
    tests = (
        "import math\nassert abs(add(2, 3) - 5) < 1e-6\nassert math.fabs(add(2, 3) - 5) < 1e-6\nassert add(2, 3) == 5"
    )
    programs = [Program(source, tests, functions=["add"]) for source in CHEATS]
    programs += [Program(source, "assert add(2, 3) == 5") for source in CHEATS]
    for program, verdict in zip(programs, run_programs(programs, workers=4), strict=True):
        assert verdict.status == "failed", (program.source, verdict)


def test_the_program_never_holds_its_tests() -> None:
    """It searches what its interpreter holds for a word of the tests, and for one of its own that it does find."""
    source = """
import gc
own = ["a word of its own"]
def find(*parts):
    word = "".join(parts)
    return any(word in str(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and len(o) < 1000)
def finds(): return find("a word", " of its own"), find("expected", "Answer77")
"""
    verdict = run_program(source, "expectedAnswer77 = 0\nassert finds() == (True, False)")
    assert verdict.passed, verdict


def test_plain_values_travel_both_ways_unchanged() -> None:
    values = [
        None, True, 0, -(10**40), 1.5, -0.0, float("inf"), 2j, "a\ud800é\n", b"\0x", bytearray(b"y"), (1, (2,)),
        [[], [1]], {1: {2}, "k": [3.0], (1, 2): None}, frozenset({1}), range(3, 9, 2),
    ]  # fmt: skip
    tests = "\n".join(
        f"v = {value!r}\nr = same(v)\nassert r == v and type(r) is type(v) and repr(r) == repr(v), (r, v)"
        for value in [v for v in values if v != float("inf")]
    )
    verdict = run_program("def same(x): return x", tests + "\nassert same(float('inf')) == float('inf')")
    assert verdict.passed, verdict


def test_what_is_no_plain_value_stays_and_can_be_handed_back() -> None:
    """As MBPP has it: the tests make objects of the program's class and give them to its function."""
    source = """
from collections import Counter, namedtuple
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
def longest(pairs): return max(p.b for p in pairs)
def squares(n): return (i * i for i in range(n))
def count(text): return Counter(text)
def point(): return namedtuple("Point", "x y")(1, 2)
def maker(n): return lambda x: x + n
def fails(): raise KeyError("missing")
"""
    tests = """
assert longest([Pair(5, 24), Pair(1, 2)]) == 24
assert Pair(5, 24).a == 5
assert list(squares(4)) == [0, 1, 4, 9]
assert count("aab") == {"a": 2, "b": 1}
assert point() == (1, 2)
assert maker(3)(4) == 7
assert Pair(1, 2) != Pair(1, 2)
try:
    fails()
except KeyError as error:
    assert "missing" in str(error)
else:
    assert False
"""
    verdict = run_program(source, tests)
    assert verdict.passed, verdict


def test_a_function_named_like_a_built_in_has_to_be_named() -> None:
    source = "def sum(a, b):\n    return 6"
    assert run_program(source, "assert sum(10, 15) == 6", functions=["sum"]).passed
    assert run_program(source, "assert sum([10, 15]) == 25").passed  # Python's own


def test_setup_runs_before_and_its_names_are_the_tests_own() -> None:
    source = "def f(x):\n    return helper(x)\ndef helper(x):\n    return x + 1"
    setup = "import math\ndef helper(x):\n    return x + 1\ndef f(x):\n    'A stub, as in a prompt.'"
    assert run_program(source, "assert f(1) == helper(1) == 2", setup=setup, functions=["f"]).passed
    lying = source.replace("x + 1", "0")
    assert run_program(lying, "assert f(1) == helper(1)", setup=setup, functions=["f"]).status == "failed"


@pytest.mark.parametrize(
    ("source", "tests", "status", "part"),
    [
        ("def f(x): return x", "assert f(1) == 2", "failed", "AssertionError (line 1 of tests.py)"),
        ("def f(x): return x", "assert f(1) == 2, 'wrong'", "failed", "AssertionError: wrong"),
        ("def f(x): return 1 / 0", "assert f(1) == 2", "failed", "ZeroDivisionError"),
        ("x = 1 / 0", "assert f(1) == 2", "failed", "ZeroDivisionError"),
        ("def g(x): return x", "assert f(1) == 1", "failed", "NameError"),
        ("def f(x):\n    while True: pass", "assert f(1) == 1", "timeout", "1 second"),
        ("while True: pass", "assert f(1) == 1", "timeout", "1 second"),
        ("def f(x): return bytearray(10 ** 12)", "assert f(1) == 1", "memory", "MemoryError"),
        ("def f(x):\n    while True: print(x)", "assert f(1) == 1", "output", "bytes of output"),
        ("def f(x):\n    import itertools\n    return itertools.count()", "list(f(1))", "timeout", "1 second"),
    ],
)
def test_the_reason_says_what_happened(source: str, tests: str, status: str, part: str) -> None:
    verdict = run_program(source, tests, limits=Limits(seconds=1.0))
    assert (verdict.status, part in verdict.reason) == (status, True), verdict


def test_standard_streams_and_times() -> None:
    source = "import sys\nprint(input().upper())\nprint('é', file=sys.stderr)"
    verdict = run_program(source, stdin="hello\nrest")
    assert (verdict.status, verdict.stdout, verdict.stderr, verdict.reason) == ("passed", "HELLO\n", "é\n", "")
    busy = run_program("while True: pass", limits=Limits(seconds=1.5))
    idle = run_program("import time\ntime.sleep(100)", limits=Limits(seconds=1.5))
    assert 0 < idle.cpu_seconds < busy.cpu_seconds < busy.seconds + 1
    assert 1.5 <= idle.seconds < 10
    long = run_program("print('x' * 500)", limits=Limits(output=100))
    assert (long.status, long.stdout) == ("output", "x" * 100)


def test_an_error_is_shown_with_its_line() -> None:
    verdict = run_program("x = 1\nraise ValueError('no')")
    assert verdict.reason == "ValueError: no (line 2 of program.py)"
    assert "raise ValueError('no')" in verdict.stderr


# ------------------------------------------------------------------------------------------------ allowing, refusing


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_nothing_runs_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None) -> None:
    monkeypatch.delenv(execution.ENVIRONMENT)
    if value is not None:
        monkeypatch.setenv(execution.ENVIRONMENT, value)
    started: list[object] = []
    monkeypatch.setattr(execution.subprocess, "Popen", lambda *a, **k: started.append(a))
    calls: list[Callable[[], object]] = [
        lambda: run_program("pass"),
        lambda: run_programs([HONEST]),
        lambda: score_problems([[HONEST]]),
    ]
    for each in calls:
        with pytest.raises(ConfigurationError, match=f"{execution.ENVIRONMENT}=1.*{execution.FLAG}"):
            each()
    assert not started
    assert execution.allowed(True)
    assert not execution.allowed()


@pytest.mark.parametrize("guard", ["network", "files"])
def test_amachine_without_a_guard_runs_nothing(guard: str) -> None:
    """Fail closed: with every layer off that would guard it, the program is refused, and the reason names the guard."""
    off = {"network": ("namespaces", "seccomp"), "files": ("root folder", "landlock")}[guard]
    verdict = run_program("print('ran')", without=off)
    assert verdict.status == "refused"
    assert guard in verdict.reason or "Python's own library" in verdict.reason
    assert verdict.stdout == ""
    with pytest.raises(ConfigurationError, match="required"):
        run_program("pass", required=("nothing",))
    with pytest.raises(ConfigurationError, match="without"):
        run_program("pass", without=("nothing",))


def test_the_user_can_run_without_a_guard_by_saying_so() -> None:
    off = ("namespaces", "root folder", "seccomp")
    assert run_program("print('ran')", without=off).status == "refused"
    verdict = run_program("print('ran')", without=off, required=("files",))
    assert verdict.stdout == "ran\n"
    assert set(GUARDS) == set(REQUIRED)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    verdict = run_program("print('ran')")
    assert (verdict.status, verdict.stdout) == ("refused", "")
    assert "Linux" in verdict.reason
    with pytest.raises(ConfigurationError, match="Linux"):
        run_programs([HONEST])


# ------------------------------------------------------------------------------------------------ many programs


def test_many_programs_are_scored_in_order_with_progress() -> None:
    right, wrong = HONEST, Program("def double(x): return x", HONEST.tests)
    seen: list[tuple[int, int]] = []
    score = score_problems(
        [[right, wrong, wrong], [wrong, wrong, wrong]], k=(1, 2), workers=2, progress=lambda *now: seen.append(now)
    )
    assert seen == [(count, 6) for count in range(1, 7)]
    assert [[verdict.passed for verdict in group] for group in score.verdicts] == [[True, False, False], [False] * 3]
    assert score.pass_at == pytest.approx({1: 1 / 6, 2: 1 / 3})


def test_scores_need_tests_and_enough_programs() -> None:
    with pytest.raises(ConfigurationError, match="needs the tests"):
        score_problems([[Program("pass")]])
    with pytest.raises(ConfigurationError, match="Draw at least 2"):
        score_problems([[HONEST]], k=(2,))
    with pytest.raises(ConfigurationError, match="workers"):
        run_programs([HONEST], workers=0)


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0}, {"seconds": float("inf")}, {"memory": 0}, {"output": -1}, {"processes": -1}]
)
def test_limits_that_limit_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong)) if "seconds" not in wrong else "time limit"):
        Limits(**wrong)  # type: ignore[arg-type]
