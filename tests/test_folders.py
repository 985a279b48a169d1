"""A crash at any point leaves the old folder or the new one, whole."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lmcompose import folders
from lmcompose.errors import SavedFolderError
from lmcompose.folders import atomic_folder, recover_folder, write_json_atomic, write_text_atomic

# A child process loads folders.py without lmcompose/__init__.py, so that it starts in an instant.
PREAMBLE = f"""
import os, signal, sys, types
package = types.ModuleType("lmcompose")
package.__path__ = [{str(Path(folders.__file__).parent)!r}]
sys.modules["lmcompose"] = package
from lmcompose import folders
"""


def child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = PREAMBLE + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def leftovers(parent: Path) -> list[str]:
    return [p.name for p in parent.iterdir() if "lmcompose-" in p.name]


OLD = {"config.json": "old config", "model.safetensors": "old weights", "optimizer.pt": "state", "sub/notes": "n"}
NEW = {"config.json": "new config", "model.safetensors": "new weights", "README.md": "card"}


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def save_new(target: Path, **options: list[str]) -> None:
    with atomic_folder(target, **options) as folder:
        make(folder, NEW)


@pytest.fixture(params=["exchange", "two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of taking a folder's place: in one step, and where the system has no such step."""
    if request.param == "two steps":
        monkeypatch.setattr(folders, "_exchange", lambda folder, target: False)
    return str(request.param)


def test_a_fresh_folder(tmp_path: Path) -> None:
    save_new(tmp_path / "deep" / "er" / "model")
    assert content(tmp_path / "deep" / "er" / "model") == NEW
    assert leftovers(tmp_path / "deep" / "er") == []


def test_an_existing_folder_is_replaced_and_other_files_are_kept(tmp_path: Path, way: str) -> None:
    target = make(tmp_path / "model", OLD)
    (target / "link").symlink_to("optimizer.pt")
    target.chmod(0o750)
    save_new(target)
    assert content(target) == {**OLD, **NEW, "link": "state"}
    assert (target / "link").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o750
    assert leftovers(tmp_path) == []


def test_own_files_of_the_old_folder_can_be_dropped(tmp_path: Path, way: str) -> None:
    target = make(tmp_path / "model", {**OLD, "model-00001.safetensors": "shard", "gone/x": "1"})
    save_new(target, drop=["model*.safetensors", "gone"])
    assert content(target) == {**{k: v for k, v in OLD.items() if k != "model.safetensors"}, **NEW}


def test_a_file_where_the_old_folder_had_a_folder(tmp_path: Path, way: str) -> None:
    target = make(tmp_path / "model", OLD)
    with atomic_folder(target) as folder:
        (folder / "sub").write_text("now a file")
    assert content(target)["sub"] == "now a file"


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt])
def test_an_exception_changes_nothing(tmp_path: Path, way: str, exception: type[BaseException]) -> None:
    target = make(tmp_path / "model", OLD)
    with pytest.raises(exception), atomic_folder(target) as folder:
        make(folder, NEW)
        raise exception
    assert content(target) == OLD
    assert leftovers(tmp_path) == []


def test_a_symbolic_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", OLD)
    (tmp_path / "latest").symlink_to("real")
    save_new(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert content(tmp_path / "real") == {**OLD, **NEW}


def test_the_folder_that_the_process_works_in(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make(tmp_path / "model", OLD)
    monkeypatch.chdir(target)
    save_new(Path("."))
    assert Path("config.json").read_text() == "new config"


def test_what_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SavedFolderError, match="is a file"):
        save_new(tmp_path / "file")
    with pytest.raises(SavedFolderError, match="mount point"):
        save_new(Path("/proc"))


# Every operation that changes the file system, in order; the child kills itself just before or just after the k-th.
KILLED_WRITER = """
    target, two_steps, after, k = sys.argv[1], sys.argv[2] == "two steps", sys.argv[3] == "after", int(sys.argv[4])
    count = -1
    def killing(operation):
        def run(*arguments, **options):
            global count
            count += 1
            mine = count
            if mine == k and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return operation(*arguments, **options)
            finally:
                if mine == k:
                    os.kill(os.getpid(), signal.SIGKILL)
        return run
    for name in ("mkdir", "link", "symlink", "rename", "replace", "fsync", "unlink", "rmdir", "chmod"):
        setattr(os, name, killing(getattr(os, name)))
    folders._exchange = killing((lambda *_: False) if two_steps else folders._exchange)
    with folders.atomic_folder(target) as folder:
        for name in ("config.json", "model.safetensors", "README.md"):
            with open(folder / name, "w") as file:
                file.write({"config.json": "new config", "model.safetensors": "new weights", "README.md": "card"}[name])
            os.chmod(folder / name, 0o644)  # a point to be killed at, between files
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["exchange", "two steps"])
def test_a_kill_at_any_operation(tmp_path: Path, kind: str, moment: str) -> None:
    seen = set()
    for k in range(200):
        parent = tmp_path / str(k)
        target = make(parent / "model", OLD)
        result = child(KILLED_WRITER, target, kind, moment, k)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
        recover_folder(target)  # what every reader calls first
        found = content(target)
        assert found in (OLD, {**OLD, **NEW}), f"killed {moment} operation {k}"
        seen.add(found == OLD)
        # The next writer succeeds and leaves nothing of the killed one behind.
        save_new(target)
        assert content(target) == {**OLD, **NEW}
        assert leftovers(parent) == []
    assert k > 15, "the kill points were not reached"
    assert seen == {True, False}, "kills before and after the exchange were both met"


def test_a_writer_at_work_is_not_a_leftover(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as mine:
        (mine / "a").write_text("1")
        result = child("with folders.atomic_folder(sys.argv[1]) as f: (f / 'b').write_text('2')", target)
        assert result.returncode == 0, result.stderr
        assert (mine / "a").read_text() == "1"
    assert content(target) == {"a": "1", "b": "2"}


FULL_DISK = """
    import resource
    from pathlib import Path
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    from lmcompose.errors import SavedFolderError
    try:
        {write}
    except SavedFolderError as error:
        print(error)
"""


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    target = make(tmp_path / "model", OLD)
    write = "\n        ".join(
        [
            "with folders.atomic_folder(sys.argv[1]) as f:",
            "    (f / 'config.json').write_text('new')",
            "    (f / 'model.safetensors').write_bytes(bytes(100_000))",
        ]
    )
    result = child(FULL_DISK.replace("{write}", write), target)
    assert result.stdout == (
        f"The disk is full: {target} could not be written."
        " What was there before is unchanged; free some space and save again.\n"
    ), result.stderr
    assert content(target) == OLD
    assert leftovers(tmp_path) == []


def test_a_full_disk_as_safetensors_reports_it(tmp_path: Path) -> None:
    target = make(tmp_path / "model", OLD)
    write = "\n        ".join(
        [
            "import numpy, safetensors.numpy",
            "with folders.atomic_folder(sys.argv[1]) as f:",
            "    safetensors.numpy.save_file({'a': numpy.zeros(100_000)}, f / 'model.safetensors')",
        ]
    )
    result = child(FULL_DISK.replace("{write}", write), target)
    assert result.stdout.startswith("The disk is full"), result.stderr
    assert content(target) == OLD


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "curve.json").write_text("[1]")
    write = "folders.write_json_atomic(sys.argv[1], ['x' * 100_000])"
    result = child(FULL_DISK.replace("{write}", write), tmp_path / "curve.json")
    assert result.stdout.startswith("The disk is full"), result.stderr
    assert content(tmp_path) == {"curve.json": "[1]"}


def test_files(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "new" / "a.json", {"loss": [1.5, 2.0], "name": "é"})
    assert json.loads((tmp_path / "new" / "a.json").read_text(encoding="utf-8")) == {"loss": [1.5, 2.0], "name": "é"}
    write_text_atomic(tmp_path / "new" / "a.json", "again")
    assert content(tmp_path / "new") == {"a.json": "again"}
    assert (tmp_path / "new" / "a.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("k", range(3))
def test_a_kill_while_a_file_is_written(tmp_path: Path, k: int) -> None:
    (tmp_path / "a.json").write_text("old")
    script = """
        count = 0
        def killing(operation):
            def run(*arguments):
                global count
                count += 1
                if count == int(sys.argv[2]) + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*arguments)
            return run
        os.fsync, os.replace = killing(os.fsync), killing(os.replace)
        folders.write_text_atomic(sys.argv[1], "new")
    """
    assert child(script, tmp_path / "a.json", k).returncode == -signal.SIGKILL
    assert (tmp_path / "a.json").read_text() == ("old" if k < 2 else "new")
    write_text_atomic(tmp_path / "a.json", "newer")
    assert content(tmp_path) == {"a.json": "newer"}
