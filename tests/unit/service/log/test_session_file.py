"""Each supervisor start opens a new log session; the newest log reports the removal of old
sessions.
"""

import errno
import io
import json
import os
from pathlib import Path

import pytest
from pykern import pkdebug

from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log import session_folders
from jobscribe.service.log.session_file import OwnSession
from jobscribe.service.log.sink import open_log
from jobscribe.service.settings.settings import LogSettings


def say(root: Path, component: str, *lines: str, settings: LogSettings | None = None) -> None:
    """Log these lines as one process lifetime."""
    log, sink = open_log(
        component, settings or LogSettings(), Redactor(), stream=io.StringIO(), root=str(root)
    )
    for line in lines:
        log("{}", line)
        sink.flush()  # otherwise the lines are written together
    sink.close()
    pkdebug.init()


def texts(root: Path, name: str = "supervisor") -> list[str]:
    return [Path(f).read_text() for f in session_folders.log_files(str(root), name)]


def test_each_start_has_a_session_and_the_front_end_writes_into_the_newest(tmp_path: Path) -> None:
    say(tmp_path, "supervisor", "first life")
    say(tmp_path, "server", "a visit")
    say(tmp_path, "supervisor", "second life")
    assert ["life" in t and t.count("\n") for t in texts(tmp_path)] == [1, 1]
    assert [
        s.parent.name for s in map(Path, session_folders.log_files(str(tmp_path), "server"))
    ] == session_folders.sessions(str(tmp_path))[:1]


def test_what_is_removed_is_said_in_the_newest_log(tmp_path: Path) -> None:
    for n in range(4):
        say(tmp_path, "supervisor", f"life {n}", settings=LogSettings(sessions_kept=2))
    found = texts(tmp_path)
    assert (
        len(found) == 2
        and "1 older sessions of the log were removed (" in found[-1]
        and "life 3" in found[-1]
    )


def test_json_lines_say_their_session_and_nothing_in_the_file_is_no_json(tmp_path: Path) -> None:
    how = LogSettings(format="json", sessions_kept=1, file_bytes=2000, files_kept=1)
    say(tmp_path, "supervisor", "gone", settings=how)
    say(tmp_path, "supervisor", *(f"{n} {'x' * 200}" for n in range(30)), settings=how)
    rows = [json.loads(line) for text in texts(tmp_path) for line in text.splitlines()]
    assert {r.get("session") for r in rows if r["component"] == "supervisor"} == {
        session_folders.latest(str(tmp_path))
    }
    said = [r["msg"] for r in rows if r["component"] == "log"]
    assert any(m.startswith("[jobscribe: goes on from supervisor.log.1; ") for m in said)


def test_all_together_stay_below_their_bytes_also_while_one_grows(tmp_path: Path) -> None:
    how = LogSettings(file_bytes=10_000, files_kept=2, total_bytes=50_000)
    say(tmp_path, "supervisor", *("x" * 1000 for _ in range(25)), settings=how)
    assert len(session_folders.sessions(str(tmp_path))) == 1
    say(tmp_path, "supervisor", *("x" * 1000 for _ in range(25)), settings=how)
    say(tmp_path, "supervisor", *("x" * 1000 for _ in range(25)), settings=how)
    assert sum(
        map(len, texts(tmp_path))
    ) <= 60_000 and "sessions of the log were removed" in "".join(texts(tmp_path))


def test_where_no_session_can_be_made_the_log_goes_on_in_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tmp_path, "supervisor", "before")

    def full(root: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session_folders, "begin", full)
    output = OwnSession(
        "supervisor", LogSettings(), str(tmp_path), lambda s: s + "\n", lambda s: s + "\n"
    )
    output.put("after\n")
    assert output.session == session_folders.latest(str(tmp_path))
    (text,) = texts(tmp_path)
    assert "before" in text and text.endswith(
        "cannot create a log session: No space left on device; lines go to the previous session\nafter\n"
    )
