"""Every process below the supervisor: which there are, what they use, and how the last of them is killed."""

import os
import resource
import signal
import time


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


def used_by_the_dead() -> float:
    """Seconds of CPU time of the processes below this one that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def used_by_the_living(root: int) -> float:
    """Seconds of CPU time of all processes below `root`, and of children of theirs that have ended."""
    ticks = 0
    for pid in descendants(root):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
        except (OSError, ValueError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


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
