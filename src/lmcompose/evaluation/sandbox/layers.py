"""The layers between a program and the machine: namespaces, a root folder of its own, Landlock, limits, no privileges.

Every function asks the kernel for one layer and raises `OSError` where the kernel refuses. All need no root.
"""

import ctypes
import os
import resource
import stat
import sys
import sysconfig
from collections.abc import Sequence

WORK = "/work"
"""The program's only writable folder, where it has a root folder of its own."""

NOBODY = 65534

_NEW_USER, _NEW_MOUNT, _NEW_PID, _NEW_NET, _NEW_IPC, _NEW_UTS = (
    0x10000000,
    0x00020000,
    0x20000000,
    0x40000000,
    0x08000000,
    0x04000000,
)
_READ_ONLY, _NO_SUID, _NO_DEVICE, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}
_PDEATHSIG, _DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38


def call(name: str, *arguments: object) -> int:
    """Call a function of libc; None is NULL.

    Raises:
        OSError: it failed.
    """
    result: int = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def die_with_parent() -> None:
    """Be killed when the process that started this one ends."""
    call("prctl", _PDEATHSIG, 9, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets away."""
    call("prctl", _SUBREAPER, 1, 0, 0, 0)


def no_new_privileges() -> None:
    """No program that this process starts gets more rights than it has, whatever its file says."""
    call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def become_nobody() -> None:
    """Give up root for the user nobody, whom the kernel's limits on processes apply to."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", _DUMPABLE, 1, 0, 0, 0)  # it owns its files in /proc again


def new_namespaces(proc: int) -> None:
    """A user, mount, network, IPC and host name namespace for this process, and a process one for its children.

    Args:
        proc: a descriptor of /proc, which a root folder of one's own does not have.
    """
    user, group = os.getuid(), os.getgid()
    call("unshare", _NEW_USER | _NEW_MOUNT | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(file, text.encode())
        os.close(file)


def new_mounts() -> None:
    """A mount namespace alone, which only root can ask for."""
    call("unshare", _NEW_MOUNT)


def readable_paths(programs: bool) -> list[str]:
    """What Python has to read: its standard library, the system's libraries, and time zones.

    Args:
        programs: Python itself as well, for a program that may start processes.
    """
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    paths += [os.path.join(base, "lib") for base in {sys.base_prefix, sys.base_exec_prefix}]
    paths += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache"]
    if programs:
        paths += [os.path.realpath(sys.executable)]
    kept: list[str] = []
    for path in sorted(dict.fromkeys(os.path.normpath(path) for path in paths if os.path.exists(path))):
        if not any(path == other or path.startswith(other + "/") for other in kept):
            kept.append(path)
    return kept


DEVICES = ("/dev/null", "/dev/urandom")


def opened(paths: Sequence[str]) -> list[tuple[str, int]]:
    """Each path with a descriptor of it, which stays valid where something is mounted over the path."""
    return [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in paths]


def readable_by_all(path: str) -> bool:
    """Whether any user can reach and read a folder."""
    path = os.path.realpath(path)
    while True:
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        if path == os.path.dirname(path):
            return True
        path = os.path.dirname(path)


def new_root(paths: Sequence[str], size: int, owner: int) -> None:
    """Enter a root folder that has `paths` alone, read-only, and an empty `WORK` folder in memory.

    Args:
        size: bytes that `WORK` may hold.
        owner: the user whom `WORK` belongs to.
    """
    sources = opened(paths)  # here, in this namespace: the kernel binds no folder of another
    base = "/tmp" if os.path.isdir("/tmp") else "/mnt"
    call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    call("mount", b"tmpfs", base.encode(), b"tmpfs", _NO_SUID | _NO_DEVICE, b"size=1m,mode=755")
    for path, descriptor in sources:
        source, target = f"/proc/self/fd/{descriptor}", base + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if stat.S_ISDIR(os.stat(descriptor).st_mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        call("mount", source.encode(), target.encode(), None, _BIND | _RECURSIVE, None)
        if not path.startswith("/dev/"):
            # The flags that the mount has already are locked: to leave one out is refused.
            locked = os.statvfs(target).f_flag & (_NO_SUID | _NO_DEVICE | 8 | 1024 | 2048)
            call("mount", None, target.encode(), None, _BIND | _REMOUNT | _READ_ONLY | locked, None)
    os.makedirs(base + WORK)
    options = f"size={size},mode=700,nr_inodes=4096,uid={owner}".encode()
    call("mount", b"tmpfs", (base + WORK).encode(), b"tmpfs", _NO_SUID | _NO_DEVICE, options)
    os.chdir(base)
    call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", _DETACH)
    os.chdir("/")
    call("mount", None, b"/", None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICE, None)
    os.chdir(WORK)
    for _, descriptor in sources:
        os.close(descriptor)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15


def landlock(readable: Sequence[int], writable: Sequence[int], devices: Sequence[int], programs: bool) -> int:
    """Deny the file system but for what is given as open descriptors, and TCP and signals where the kernel can.

    Args:
        readable, writable, devices: what may be read; folders that may be written as well; devices that may be written.
        programs: files below `readable` may be run.

    Returns:
        The version of Landlock that the kernel has.
    """
    version = call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    files = 0x1FFF | (0x2000 if version >= 2 else 0)
    files |= (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    rules = _Ruleset(files, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call("syscall", _CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    read = _READ_FILE | _READ_FOLDER | (_EXECUTE if programs else 0)
    everything = files & ~_EXECUTE & ~0x40 & ~0x800 & ~0x200  # no device nodes, no sockets
    grants = [(descriptor, read) for descriptor in readable]
    grants += [(descriptor, everything) for descriptor in writable]
    grants += [(descriptor, _READ_FILE | _WRITE_FILE) for descriptor in devices]
    for descriptor, access in grants:
        if not stat.S_ISDIR(os.stat(descriptor).st_mode):
            access &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
        call("syscall", _ADD_RULE, ruleset, 1, ctypes.byref(_Beneath(access, descriptor)), 0)
    call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return version


def drop_capabilities() -> None:
    """Give up every capability, also those that a new user namespace has given."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call("syscall", _CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)())


def limit(memory: int, cpu_seconds: int, file_size: int, files: int, tasks: int) -> None:
    """The kernel's limits on a process, which it cannot raise again.

    Args:
        memory: bytes of address space of each process.
        cpu_seconds: of each process.
        file_size: bytes of each file.
        files: open at a time.
        tasks: processes and threads of this user in this namespace, together.
    """
    for which, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(which, (most, most))


def tasks_of(user: int, proc: int) -> int:
    """How many processes and threads a user has on the machine. `proc` is a descriptor of /proc."""
    count = 0
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                if os.stat(name, dir_fd=proc).st_uid == user:
                    count += os.stat(f"{name}/task", dir_fd=proc).st_nlink - 2
            except OSError:
                continue  # it ended meanwhile
    return count
