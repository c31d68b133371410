"""Links to the evidence, and the exit file, with few inodes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.agent.keeper.executions import evidence
from jobscribe.agent.keeper.executions.evidence import link_run_dir, write_exit

JID = "user1234-sim12345-command"


class Writes:
    """Takes what would be written with a new file."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}

    def write(self, path: str, value: dict[str, Any]) -> None:
        self.written[path] = value


def execution(place: Path, attempt: int = 1) -> Any:
    name = f"{JID}-7-{attempt}-main-0"
    folder = place / "run" / name
    folder.mkdir(parents=True)
    (place / "dir").mkdir(exist_ok=True)
    return SimpleNamespace(
        name=name,
        token=f"{JID}/7/{attempt}/main/0",
        folder=str(folder),
        run_dir=str(place / "dir"),
    )


def test_the_link_and_latest_lead_to_the_evidence_of_the_latest_attempt(tmp_path: Path) -> None:
    own = tmp_path / "dir" / ".jobscribe"
    attempts = []
    for n in (1, 2, 3):
        attempts.append(execution(tmp_path, n))
        link_run_dir(attempts[-1])
        assert own.resolve() == (own / "latest").resolve() == Path(attempts[-1].folder)
    for n, e in enumerate(attempts, 1):
        assert (own / f"attempt-{n}").resolve() == Path(e.folder)


def test_all_executions_share_the_inode_of_latest_until_it_has_too_many_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions = [execution(tmp_path, n) for n in (1, 2, 3)]
    link_run_dir(executions[0])
    link_run_dir(executions[1])
    inodes = [os.lstat(f"{e.folder}/latest").st_ino for e in executions[:2]]
    assert inodes[0] == inodes[1]
    real, calls = os.link, []

    def full_once(source: str, target: str, **options: Any) -> None:
        calls.append(target)
        if len(calls) == 1:
            raise OSError(31, "Too many links")
        real(source, target, **options)

    monkeypatch.setattr(os, "link", full_once)
    link_run_dir(executions[2])
    assert os.lstat(f"{executions[2].folder}/latest").st_ino != inodes[0]
    assert (Path(executions[2].folder) / "latest").resolve() == Path(executions[2].folder)


def test_without_hard_links_each_execution_has_a_link_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    e = execution(tmp_path)
    link_run_dir(e)
    assert (tmp_path / "dir" / ".jobscribe" / "latest").resolve() == Path(e.folder)


def test_a_folder_of_another_version_keeps_its_place(tmp_path: Path) -> None:
    e = execution(tmp_path)
    own = tmp_path / "dir" / ".jobscribe"
    own.mkdir()
    (own / "attempt-1").symlink_to("elsewhere")
    link_run_dir(e)
    assert (own / "latest").resolve() == Path(e.folder)
    assert (own / "attempt-1").is_symlink()


def test_the_exit_of_a_success_takes_the_inode_of_the_empty_error_output(tmp_path: Path) -> None:
    e, writes = execution(tmp_path), Writes()
    stderr = Path(e.folder) / "stderr.log"
    stderr.touch()
    inode = stderr.stat().st_ino
    write_exit(e, {"code": 0, "endedAt": 1.5}, writes)  # type: ignore[arg-type]
    final = Path(e.folder) / "exit.json"
    assert json.loads(final.read_text()) == {"code": 0, "endedAt": 1.5}
    assert final.stat().st_ino == inode
    assert (os.listdir(e.folder), writes.written) == (["exit.json"], {})


@pytest.mark.parametrize("why", ["failed", "has output", "is open", "is linked", "is missing"])
def test_otherwise_the_exit_is_a_new_file_and_the_error_output_stays(
    tmp_path: Path, why: str
) -> None:
    e, writes = execution(tmp_path), Writes()
    stderr = Path(e.folder) / "stderr.log"
    if why != "is missing":
        stderr.write_text("oh\n" if why == "has output" else "")
    if why == "is linked":
        os.link(stderr, tmp_path / "link")
    exit_ = {"code": 1 if why == "failed" else 0}
    if why == "is open":
        with stderr.open() as _:
            write_exit(e, exit_, writes)  # type: ignore[arg-type]
    else:
        write_exit(e, exit_, writes)  # type: ignore[arg-type]
    assert writes.written == {f"{e.folder}/exit.json": exit_}
    assert os.listdir(e.folder) == ([] if why == "is missing" else ["stderr.log"])


def test_a_full_disk_leaves_the_error_output_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, writes = execution(tmp_path), Writes()
    (Path(e.folder) / "stderr.log").touch()

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evidence.os, "write", full)
    write_exit(e, {"code": 0}, writes)  # type: ignore[arg-type]
    assert os.listdir(e.folder) == ["stderr.log"]
    assert (Path(e.folder) / "stderr.log").stat().st_size == 0
    assert len(writes.written) == 1
