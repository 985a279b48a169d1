"""How much memory this machine has and this process uses, and numbers as a person reads them. Knows no models."""

import contextlib
import os
import sys
from pathlib import Path

import torch

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""The size of one number, by the name of its dtype."""


def memory() -> tuple[int, int]:
    """Bytes of memory free and in all, of the GPU where there is one, else of the machine or its container."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = limit
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():  # Linux; elsewhere all memory counts as free
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text().strip() if Path(file).is_file() else "max"
        if text.isdigit():
            limit = min(limit, int(text))
    return min(available, limit), limit


def peak_bytes(device: str = "cpu") -> int:
    """The most memory that this process, or the GPU, has used so far, or since `forget_peak`."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    if (now := _status("VmHWM")) is not None:
        return now
    import resource  # which not every system has

    # elsewhere a process that was started by a larger one can begin with that one's peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def used_bytes(device: str = "cpu") -> int:
    """The memory that this process, or the GPU, uses now; outside Linux the most that the process has used."""
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated()
    now = _status("VmRSS")
    return peak_bytes() if now is None else now


def forget_peak(device: str = "cpu") -> None:
    """Let `peak_bytes` start again from what is used now, where the system can."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)


def _status(field: str) -> int | None:
    """A field of this process's status on Linux, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None


def as_count(number: int) -> str:
    """A count such as 1.5 B or 64.9 M."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def as_size(number: int) -> str:
    """A number of bytes such as 14.6 GiB."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
