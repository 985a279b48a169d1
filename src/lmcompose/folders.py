"""Folders and files that a crash leaves whole: the old one or the new one, never half of either.

A folder is written beside its target and then takes its place in one step of the file system. This file knows
nothing of what is written.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lmcompose.errors import SavedFolderError

_NEW, _OLD = ".lmcompose-new-", ".lmcompose-old-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # from <fcntl.h> and <linux/fs.h>
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}  # an old kernel, or a file system that cannot


@contextmanager
def atomic_folder(target: str | os.PathLike[str], drop: Iterable[str] = ()) -> Iterator[Path]:
    """Write a folder so that a crash at any point leaves either the old folder or the new one.

        with atomic_folder("out/model", drop=["model-*.safetensors"]) as folder:
            save_file(tensors, folder / "model.safetensors")

    Yields an empty folder beside `target`. On success it takes the target's place. Files of an existing target that
    were not written again are kept (a Trainer's optimizer state beside the model), except those whose name in the
    folder matches a pattern in `drop`. On an exception the new folder is deleted and the target is as it was.

    Raises SavedFolderError when the target cannot be a folder, or when the disk is full.
    """
    target = Path(target).resolve()
    if target.exists() and not target.is_dir():
        raise SavedFolderError(f"{target} is a file. Name a folder to save in.")
    if target.is_mount():
        raise SavedFolderError(f"{target} is a mount point and cannot be replaced. Name a folder inside it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(target)
    _remove_leftovers(target)

    folder = _beside(target, _NEW)
    folder.mkdir()
    lock = _lock(folder)
    try:
        yield folder
        if target.is_dir():
            shutil.copymode(target, folder)
        _sync_tree(folder)
        if target.is_dir():
            _keep_old_files(target, folder, tuple(drop))
            _sync(folder)
            _take_place(folder, target)
        else:
            os.rename(folder, target)
        _sync(target.parent)
    except Exception as error:
        if _is_disk_full(error):
            state = "What was there before is unchanged" if target.exists() else "Nothing was left there"
            raise SavedFolderError(
                f"The disk is full: {target} could not be written. {state}; free some space and save again."
            ) from error
        raise
    finally:
        # After an exchange this is the old folder; after an exception, the unfinished one; else it is gone.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def recover_folder(target: str | os.PathLike[str]) -> None:
    """Put back a folder that a crash left set aside, where folders cannot be exchanged in one step.

    Call it before reading a folder that `atomic_folder` writes. It does nothing when the folder is there.
    """
    target = Path(target).resolve()
    if target.exists():
        return
    for aside in _siblings(target, _OLD):
        os.rename(aside, target)
        return


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file so that a crash leaves either the old file or the new one.

    Raises SavedFolderError when the disk is full; the old file is then unchanged.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    new = _beside(path, _NEW)
    try:
        with open(new, "x", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(new, path)
        _sync(path.parent)
    except OSError as error:
        if _is_disk_full(error):
            raise SavedFolderError(
                f"The disk is full: {path} could not be written. Free some space and try again."
            ) from error
        raise
    finally:
        new.unlink(missing_ok=True)


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON; a crash leaves either the old file or the new one."""
    write_text_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json_lines(path: str | os.PathLike[str], rows: Iterable[Any]) -> Path:
    """Write `rows` to `path`, each as JSON on a line of its own, so that the file is never half-written.

    Returns the path. Raises as `write_text_atomic` does.
    """
    write_text_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return Path(path)


# ------------------------------------------------------------------------------------------------- taking the place


def _take_place(folder: Path, target: Path) -> None:
    """Put `folder` where `target` is; afterwards the old folder is at `folder`, or gone."""
    # The folder that this process works in goes with the old one: step into the new one of the same name.
    inside = Path.cwd().is_relative_to(target)
    working_folder = Path.cwd()
    try:
        if not _exchange(folder, target):
            _rename_in_two_steps(folder, target)
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV):
            raise SavedFolderError(f"{target} is in use or on another disk. Save to a new folder instead.") from error
        raise
    if inside and working_folder.is_dir():
        os.chdir(working_folder)


def _exchange(folder: Path, target: Path) -> bool:
    """Exchange two folders in one step; False where the system has no such step. Linux renameat2(2)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(folder), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(target))


def _rename_in_two_steps(folder: Path, target: Path) -> None:
    aside = _beside(target, _OLD)
    os.rename(target, aside)  # a crash after this line is what recover_folder mends
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _keep_old_files(old: Path, new: Path, drop: tuple[str, ...]) -> None:
    """Give `new` the files of `old` that it lacks, as hard links: no copy, and `old` stays whole."""
    for parent, folders, files in os.walk(old):
        inside = Path(parent).relative_to(old)
        for name in [*folders, *files]:
            source, copy = old / inside / name, new / inside / name
            if os.path.lexists(copy) or any(fnmatch(str(inside / name), pattern) for pattern in drop):
                continue
            if source.is_symlink():
                os.symlink(os.readlink(source), copy)
            elif source.is_dir():
                copy.mkdir()
                shutil.copymode(source, copy)
            else:
                _link_or_copy(source, copy)
        # Links are made inside folders that both have, and not inside a folder that is now a file.
        folders[:] = [name for name in folders if (new / inside / name).is_dir()]


def _link_or_copy(source: Path, copy: Path) -> None:
    try:
        os.link(source, copy)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copy2(source, copy)  # a file system without hard links
        _sync(copy)


# ------------------------------------------------------------------------------------------------------- leftovers


def _beside(target: Path, kind: str) -> Path:
    return target.parent / f".{target.name}{kind}{secrets.token_hex(4)}"


def _siblings(target: Path, kind: str) -> list[Path]:
    """What was written beside `target` under our names, newest first."""
    found = target.parent.glob(f".{glob.escape(target.name)}{kind}*")
    return sorted(found, key=lambda path: path.lstat().st_mtime, reverse=True)


def _remove_leftovers(target: Path) -> None:
    """Delete what killed processes left beside `target`. A process that still writes holds a lock on its own."""
    for leftover in [*_siblings(target, _NEW), *_siblings(target, _OLD)]:
        try:
            lock = _lock(leftover)
        except OSError:  # in use, or already deleted by another process
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
        os.close(lock)


def _lock(path: Path) -> int:
    """An exclusive lock that the system lifts when the process ends; OSError when another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


# ------------------------------------------------------------------------------------------------------------ disk


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder):
        for name in files:
            if not (Path(parent) / name).is_symlink():
                _sync(Path(parent) / name)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    # safetensors reports the system's error inside a text of its own
    return type(error).__name__ == "SafetensorError" and any(
        f"code: {code}" in str(error) or f"os error {code}" in str(error)
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    )
