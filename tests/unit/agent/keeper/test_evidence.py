"""Links to the evidence, and the exit, with few inodes."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.agent.keeper.executions.evidence import give_spare_files, link_run_dir, write_exit
from jobscribe.agent.keeper.executions.ledger import KeeperLedger
from jobscribe.runtime.execution.keeper_ledger import earlier_exit, load

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
        close_lock=lambda: None,
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


def ledger(place: Path) -> KeeperLedger:
    (place / "run").mkdir(exist_ok=True)
    out = KeeperLedger(str(place))
    out.open()
    return out


def test_a_success_without_output_leaves_its_files_to_the_next_execution(tmp_path: Path) -> None:
    e, writes, layout = execution(tmp_path), Writes(), ledger(tmp_path)
    layout.add_entry(e.name, e.token)
    inodes = set()
    for name in ("stdout.log", "stderr.log"):
        os.close(os.open(f"{e.folder}/{name}", os.O_CREAT, 0o600))
        inodes.add(os.stat(f"{e.folder}/{name}").st_ino)
    write_exit(e, {"code": 0, "endedAt": 1.5}, layout, writes)  # type: ignore[arg-type]
    give_spare_files(e, layout)
    assert os.listdir(e.folder) == [] and writes.written == {}
    assert load(str(tmp_path)).entries[e.name].exit == {"code": 0, "endedAt": 1.5}
    following = Path(execution(tmp_path, 2).folder)
    for name in ("stdout.log", "stderr.log", "a third one"):
        layout.spare.take(str(following / name))
    assert {p.name: p.stat().st_ino in inodes for p in following.iterdir()} == {
        "stdout.log": True,
        "stderr.log": True,
    }


@pytest.mark.parametrize("why", ["has output", "is open", "is linked", "has another mode"])
def test_a_file_that_is_or_was_used_stays_where_it_is(tmp_path: Path, why: str) -> None:
    e, writes, layout = execution(tmp_path), Writes(), ledger(tmp_path)
    stderr = Path(e.folder) / "stderr.log"
    stderr.write_text("oh\n" if why == "has output" else "")
    stderr.chmod(0o644 if why == "has another mode" else 0o600)
    if why == "is linked":
        os.link(stderr, tmp_path / "link")
    with stderr.open() if why == "is open" else contextlib.nullcontext():
        write_exit(e, {"code": 0}, layout, writes)  # type: ignore[arg-type]
        give_spare_files(e, layout)
    assert os.listdir(e.folder) == ["stderr.log"] and os.listdir(tmp_path / "spare") == []
    assert writes.written == {}


def test_a_file_that_is_opened_while_it_becomes_spare_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = ledger(tmp_path)
    path = tmp_path / "stderr.log"
    os.close(os.open(path, os.O_CREAT, 0o600))
    real = os.rename

    def rename(source: str, target: str) -> None:
        if source == str(path):
            with pytest.raises(
                BlockingIOError
            ):  # it waits for the lease, and may have the file then
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    layout.spare.give(str(path))
    assert path.exists() and os.listdir(tmp_path / "spare") == []


def test_a_failure_and_a_success_on_a_full_disk_have_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, writes, layout = execution(tmp_path), Writes(), ledger(tmp_path)
    os.close(os.open(f"{e.folder}/stderr.log", os.O_CREAT, 0o600))
    write_exit(e, {"code": 1}, layout, writes)  # type: ignore[arg-type]
    assert writes.written == {f"{e.folder}/exit.json": {"code": 1}}

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    write_exit(e, {"code": 0}, layout, writes)  # type: ignore[arg-type]
    assert writes.written == {f"{e.folder}/exit.json": {"code": 0}}
    assert os.listdir(e.folder) == ["stderr.log"]


def test_ends_of_forgotten_executions_are_kept_apart_when_the_ledger_is_rewritten(
    tmp_path: Path,
) -> None:
    layout = ledger(tmp_path)
    for n in range(3):
        layout.add_entry(f"e{n}", f"t{n}")
        layout.record_end(f"e{n}", {"code": 0, "endedAt": n})
    layout.remove_entries(["e0", "e1"])
    assert earlier_exit(str(tmp_path), "e0") == {"code": 0, "endedAt": 0}
    with (tmp_path / "ledger.jsonl").open("a") as f:
        f.write('{"end":"e1","exit":{"code":0,"endedAt":9}')  # a line that the power cut off
    for _ in range(2):
        known = ledger(tmp_path).open()
        assert {name: entry.exit for name, entry in known.items()} == {
            "e2": {"code": 0, "endedAt": 2}
        }
    (archive,) = (tmp_path / "exits").iterdir()
    assert archive.read_bytes().count(b"\n") == 2
    assert '"e1"' not in (tmp_path / "ledger.jsonl").read_text()
    assert earlier_exit(str(tmp_path), "e1") == {"code": 0, "endedAt": 1}
    assert earlier_exit(str(tmp_path), "e") is None
