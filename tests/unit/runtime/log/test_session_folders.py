"""The log files of a root, by session."""

import os
import threading
from pathlib import Path

import pytest

from jobscribe.runtime.log import session_folders
from jobscribe.runtime.log.destinations import RotatingFile

NOW = 1_795_300_000.0


def write(folder: str | Path, name: str, text: str) -> Path:
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(root: Path, name: str = "supervisor") -> list[str]:
    return [Path(f).read_text() for f in session_folders.log_files(str(root), name)]


def test_a_session_is_private_and_found_by_links_that_are_old_habits(tmp_path: Path) -> None:
    folder = session_folders.begin(str(tmp_path), now=NOW)
    write(folder, "supervisor.log", "one")
    assert (
        os.path.basename(folder).startswith("20261121T222640Z-")
        and os.stat(folder).st_mode & 0o777 == 0o700
    )
    assert (tmp_path / "log" / "latest").resolve() == Path(folder).resolve()
    assert (tmp_path / "log" / "supervisor.log").read_text() == "one"
    assert os.readlink(tmp_path / "log" / "supervisor.log") == "latest/supervisor.log"
    write(
        session_folders.begin(str(tmp_path), now=NOW), "supervisor.log", "two"
    )  # within the same second
    assert (tmp_path / "log" / "supervisor.log").read_text() == "two" and read(tmp_path) == [
        "one",
        "two",
    ]


def test_all_files_of_a_log_oldest_first_and_each_once(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    first = session_folders.begin(str(tmp_path), now=NOW)
    for name, text in (
        ("supervisor.log", "1c"),
        ("supervisor.log.1", "1b"),
        ("supervisor.log.12", "1a"),
        ("server.log", "web"),
    ):
        write(first, name, text)
    second = session_folders.begin(str(tmp_path), now=NOW - 86400)  # the clock was set back
    write(second, "supervisor.log", "2")
    write(second, "supervisor.log.old", "somebody's")
    assert read(tmp_path) == ["1a", "1b", "1c", "2"] and read(tmp_path, "server") == ["web"]


def test_plain_files_of_an_older_root_become_a_session_and_nothing_is_lost(tmp_path: Path) -> None:
    for name in ("supervisor.log", "supervisor.log.1", "server.log"):
        write(tmp_path / "log", name, name)
    assert read(tmp_path) == ["supervisor.log.1", "supervisor.log"]
    write(session_folders.begin(str(tmp_path)), "supervisor.log", "new")
    assert read(tmp_path) == ["supervisor.log.1", "supervisor.log", "new"] and read(
        tmp_path, "server"
    ) == ["server.log"]
    assert (tmp_path / "log" / "server.log").is_symlink() and len(
        session_folders.sessions(str(tmp_path))
    ) == 2


def test_latest_never_dangles_however_many_begin_at_once(tmp_path: Path) -> None:
    root, over, seen = str(tmp_path), threading.Event(), set()
    session_folders.begin(root)

    def look() -> None:
        while not over.is_set():
            seen.add(os.path.isdir(tmp_path / "log" / "latest"))

    looker = threading.Thread(target=look)
    looker.start()
    starts = [
        threading.Thread(target=lambda: [session_folders.begin(root) for _ in range(25)])
        for _ in range(4)
    ]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    over.set()
    looker.join()
    assert seen == {True} and len(session_folders.sessions(root)) == 101
    assert sorted(os.listdir(tmp_path / "log")) == [
        "latest",
        "server.log",
        "sessions",
        "supervisor.log",
    ]


def test_at_no_moment_of_a_start_is_there_no_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check after each system call that changes the folder."""
    session_folders.begin(str(tmp_path))
    seen: list[bool] = []
    for name in ("rename", "replace", "symlink", "unlink", "remove", "mkdir"):

        def checked(*args: object, real: object = getattr(os, name), **named: object) -> None:
            real(*args, **named)  # type: ignore[operator]
            seen.append(os.path.isdir(tmp_path / "log" / "latest"))

        monkeypatch.setattr(os, name, checked)
    session_folders.begin(str(tmp_path))
    assert len(seen) >= 3 and all(seen)


@pytest.mark.parametrize(
    ("kept", "total", "left"), [(3, 10**6, 3), (9, 250, 2), (9, 10**6, 5), (1, 1, 1)]
)
def test_the_oldest_sessions_go_and_the_newest_never(
    tmp_path: Path, kept: int, total: int, left: int
) -> None:
    folders = [session_folders.begin(str(tmp_path), now=NOW + n) for n in range(5)]
    for folder in folders:
        write(folder, "supervisor.log", "x" * 100)
    removed = session_folders.prune(str(tmp_path), kept=kept, total_bytes=total)
    assert removed == (5 - left, 100 * (5 - left))
    assert [f for f in folders if os.path.isdir(f)] == folders[5 - left :]


def test_a_front_end_follows_the_newest_session(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "log").mkdir()
    output = session_folders.Following(str(tmp_path), "server", RotatingFile, lambda: now[0])
    output.put("before any supervisor\n")
    first = session_folders.begin(str(tmp_path))
    output.put("not looked yet\n")
    now[0] = session_folders.LOOK_SECS
    output.put("first\n")
    second = session_folders.begin(str(tmp_path))
    now[0] *= 3
    output.put("second\n")
    output.close()
    assert (Path(first) / "server.log").read_text() == "first\n" and (
        Path(second) / "server.log"
    ).read_text() == "second\n"
    assert read(tmp_path, "server")[
        0
    ] == "before any supervisor\nnot looked yet\n" and output.session == os.path.basename(second)


def test_it_does_not_look_at_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session_folders.begin(str(tmp_path))
    output = session_folders.Following(str(tmp_path), "server", RotatingFile, lambda: 0.5)
    monkeypatch.setattr(os, "readlink", lambda path: pytest.fail("it looked"))
    for _ in range(100):
        output.put("x\n")
    output.close()
