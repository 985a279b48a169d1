"""A filter of system calls (seccomp), written by hand as a small BPF program for x86_64 and aarch64.

It denies what a program that computes something has no use for: sockets, signals to others, mounts, new namespaces,
other processes' memory. A denied call fails with EPERM, so that the program sees an ordinary `PermissionError`.
"""

import ctypes
import os
import platform
from collections.abc import Iterable, Sequence

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""machine name -> (AUDIT_ARCH of its calls, its column in the tables of call numbers)."""

_NOWHERE = -1
"""The number of a call that an architecture does not have."""

NETWORK = {
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "io_uring_setup": (425, 425),  # it could open sockets past this filter
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
PRIVILEGED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "iopl": (172, _NOWHERE),
    "ioperm": (173, _NOWHERE),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
SHARED_MEMORY = {  # memory that the limit on the address space does not count
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
ATTRIBUTES = {  # Landlock does not cover these: a file outside could be changed without being opened
    "chmod": (90, _NOWHERE),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, _NOWHERE),
    "fchown": (93, 55),
    "lchown": (94, _NOWHERE),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "utime": (132, _NOWHERE),
    "utimes": (235, _NOWHERE),
    "futimesat": (261, _NOWHERE),
    "utimensat": (280, 88),
    "truncate": (76, 45),
}
SIGNALS = {"tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
TO_ONESELF = {"kill": (62, 129), "tgkill": (234, 131)}
NEW_PROCESSES = {"fork": (57, _NOWHERE), "vfork": (58, _NOWHERE), "execve": (59, 221), "execveat": (322, 281)}
CLONE = (56, 220)
CLONE3 = (435, 435)
PRLIMIT = (302, 261)

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS, NEWCGROUP."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _DENY, _ABSENT, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
"""Answers: allow, fail with EPERM, fail with ENOSYS (so that libc falls back), kill the process."""

_PR_SET_SECCOMP, _FILTER = 22, 2

Instruction = tuple[int, int, int, int]


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def program(machine: str, *, fork: bool, own_root: bool, own_pids: bool, pid: int) -> list[Instruction]:
    """The instructions of the filter.

    Args:
        machine: a key of `ARCHITECTURES`.
        fork: new processes are allowed.
        own_root: nothing of the user's files can be seen, so that changing modes and times is harmless.
        own_pids: no process of the user can be named, so that sending signals is harmless.
        pid: the process that signals may go to where they may go nowhere else.
    """
    architecture, column = ARCHITECTURES[machine]
    calls = [NETWORK, PRIVILEGED, SHARED_MEMORY]
    calls += [] if own_root else [ATTRIBUTES]
    calls += [] if own_pids else [SIGNALS]
    calls += [] if fork else [NEW_PROCESSES]
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _DENY)]  # the x32 names of the same calls
    for number in _numbers(calls, column):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    lines += [(_EQUAL, 0, 1, CLONE3[column]), (_RETURN, 0, 0, _ABSENT)]  # its flags are out of a filter's reach
    lines += _on_first_argument(CLONE[column], (_ANY_BIT, 0, 1, _CLONE_NAMESPACES))
    if not fork:
        lines += _on_first_argument(CLONE[column], (_ANY_BIT, 1, 0, _CLONE_THREAD))
    if not own_pids:
        lines += _on_first_argument(PRLIMIT[column], (_EQUAL, 1, 0, 0))
        for number in _numbers([TO_ONESELF], column):
            lines += _on_first_argument(number, (_EQUAL, 1, 0, pid))
    return [*lines, (_RETURN, 0, 0, _ALLOW)]


def install(instructions: Sequence[Instruction]) -> None:
    """Put the filter on this process and all that it starts, for good. It needs no-new-privileges to be set.

    Raises:
        OSError: the kernel has no filters.
    """
    array = (_Instruction * len(instructions))(*(_Instruction(*line) for line in instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(instructions), array)), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def machine() -> str:
    """The name of this machine's architecture.

    Raises:
        OSError: it is none that the filter is written for.
    """
    name = platform.machine()
    if name not in ARCHITECTURES or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(f"no filter is written for {name}")
    return name


def _on_first_argument(number: int, test: Instruction) -> list[Instruction]:
    """Deny a call where `test` on its first argument does not jump over the denial."""
    # The number is loaded again afterwards, for the tests that follow.
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        test,
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _numbers(calls: Iterable[dict[str, tuple[int, int]]], column: int) -> list[int]:
    return [numbers[column] for group in calls for numbers in group.values() if numbers[column] != _NOWHERE]
