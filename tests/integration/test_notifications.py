"""Notifications of a real supervisor: kills between an answer and its record, the command line, and
secrecy.
"""

import http.client
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from supervisor_process import (
    PYTHON_PATH,
    SupervisorProcess,
    jid_of,
    req_id,
    shell,
    spec,
    texts_below,
    until,
)

SECRET, HEADER, OF_THE_JOB = (
    "4f1d0c6e2b7a98350fdeca1b",
    "canaryOfAHeaderOfTheSite",
    "canaryOfTheJobItself",
)
DOCS = Path(__file__).parents[2] / "docs" / "notifications.md"


class Receiver:
    """The receiver from the documentation, in a separate process."""

    def __init__(self, place: Path) -> None:
        (place / "receiver.py").write_text(DOCS.read_text().split("```python\n")[1].split("```")[0])
        self.secret = _private(place / "notify.secret", SECRET + "\n")
        self.process = subprocess.Popen(
            [sys.executable, str(place / "receiver.py"), str(self.secret), "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split()[-1])
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next notification as ("new" or "again", the message)."""
        how, _, message = self._lines.get(timeout=30).partition(" ")
        return how, json.loads(message)

    def quiet(self) -> bool:
        return self._lines.empty()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def there(place: Path) -> Iterator[Receiver]:
    made = Receiver(place)
    yield made
    made.close()


def _private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def targets(place: Path, there: Receiver, more: str = "") -> str:
    _private(place / "headers", f"X-Site: {HEADER}\n")
    return str(
        _private(
            place / "notify.yml",
            (
                f"targets:\n  - name: hook\n    url: http://127.0.0.1:{there.port}/\n    secretFile: notify.secret\n    headersFile: headers\n"
                f"    on: [running, ended]\n{more}"
            ),
        )
    )


def standing(site: SupervisorProcess, name: str = "hook") -> dict[str, Any]:
    rows: list[dict[str, Any]] = site.ask("GET", "/api/notify").json()["targets"]
    return next(row for row in rows if row["name"] == name)


def test_killed_between_the_answer_and_its_record_it_tells_again_with_the_same_id_and_loses_nothing(
    make_site: Callable[..., SupervisorProcess], place: Path, there: Receiver
) -> None:
    site = make_site(f"notify.file={targets(place, there)}").start()
    kept = site.root / "notifications.json"
    until(kept.exists, "where it begins is on disk")
    blocked = site.root / f"notifications.json.{site.pid}.new"
    blocked.mkdir()  # nothing can be written from here on
    first, second = shell("exit 3"), spec(["true"])
    site.finished(first)
    before = [there.next() for _ in range(2)]
    until(lambda: standing(site)["delivered"] == 2, "both are delivered")
    until(
        lambda: site.ask("GET", "/api/notify").json()["unwritten"],
        "and it is said that this cannot be written down",
    )
    site.stop(signal.SIGKILL)
    site.start()
    blocked.rmdir()
    again = [there.next() for _ in range(2)]
    assert [how for how, _ in before] == ["new", "new"] and [how for how, _ in again] == [
        "again",
        "again",
    ]
    assert [m["id"] for _, m in before] == [m["id"] for _, m in again]
    told = [m for _, m in before]
    assert [(m["event"], m["computeJid"], m["computeJobSerial"]) for m in told] == [
        (e, jid_of(first), told[0]["computeJobSerial"]) for e in ("running", "error")
    ]
    assert (
        told[1]["why"]["cause"] == "exit" and told[1]["reason"] == "exit" and told[0]["why"] is None
    )
    site.finished(second)
    assert [(how, m["computeJid"], m["event"]) for how, m in (there.next(), there.next())] == [
        ("new", jid_of(second), "running"),
        ("new", jid_of(second), "completed"),
    ]
    assert there.quiet()
    check_books(site)


@pytest.mark.timeout(600)
def test_killed_at_any_moment_it_tells_everything_at_least_once_and_in_the_order_of_each_job(
    make_site: Callable[..., SupervisorProcess], place: Path, there: Receiver
) -> None:
    kills, chance = 12 if os.environ.get("SOAK") else 1, random.Random()
    site = make_site(f"notify.file={targets(place, there)}").start()
    until((site.root / "notifications.json").exists, "where it begins is on disk")
    runs = []
    for _ in range(kills):
        batch = [spec(["true"]) for _ in range(12)]
        site.post("run-many", reqId=req_id(), runs=batch)
        runs += batch
        moment = chance.uniform(0.0, 0.6)
        threading.Event().wait(moment)  # a random moment: there is no condition to wait for
        site.stop(signal.SIGKILL)
        site.start()
    for run in runs:
        assert site.wait(run)["state"] == "completed"
    told: dict[str, list[str]] = {jid_of(run): [] for run in runs}
    ids: set[str] = set()
    while any("completed" not in events for events in told.values()):
        how, message = there.next()
        assert (how == "again") == (message["id"] in ids)
        ids.add(message["id"])
        if how == "new":
            told[message["computeJid"]].append(message["event"])
    assert all(events == ["running", "completed"] for events in told.values()), told
    check_books(site)


def test_the_command_line_lists_tests_and_retries_and_no_secret_is_anywhere(
    make_site: Callable[..., SupervisorProcess], place: Path, there: Receiver
) -> None:
    script = place / "page"
    script.write_text(
        f"#!/bin/sh\ncat >> {place}/paged; echo >> {place}/paged\nenv >> {place}/env\n[ -e {place}/well ] && echo all is well\n"
    )
    script.chmod(0o700)
    site = make_site(
        f"notify.file={targets(place, there, f'  - {{name: pager, command: [{script}], on: [error]}}')}"
    ).start()
    shown = [site.command("notify", "test", "hook")]
    assert (
        shown[0].returncode == 0
        and "hook: delivered after" in shown[0].stderr
        and "HTTP 204" in shown[0].stderr
    )
    assert there.next()[1]["event"] == "test"
    site.finished(shell(f"echo {OF_THE_JOB}; exit 3", env={"MINE": OF_THE_JOB}))
    until(lambda: standing(site, "pager")["failed"] >= 1, "the pager fails")
    shown.append(site.command("notify", "list"))
    assert (
        shown[-1].returncode == 0
        and "failing" in shown[-1].stdout
        and "pager has failed since" in shown[-1].stderr
        and "the command exited with 1" in shown[-1].stderr
    )
    shown.append(site.command("notify", "retry", "pager", "--json"))
    assert json.loads(shown[-1].stdout)["waiting"] == 1
    (place / "well").touch()
    assert site.post("notify-retry", name="pager")["waiting"] <= 1
    until(lambda: standing(site, "pager")["delivered"] == 1, "the pager is told")
    shown.append(site.command("notify", "test", "nobody"))
    assert shown[-1].returncode != 0 and "known targets: hook, pager" in shown[-1].stderr
    assert (
        "all is well" in site.logged()
        and "notify.delivered" in site.ask("GET", "/api/metrics").json()["counters"]
    )
    said = (
        "".join(s.stdout + s.stderr for s in shown)
        + (place / "paged").read_text()
        + (place / "env").read_text()
    )
    said += (
        "".join(json.dumps(there.next()[1]) for _ in range(2))
        + site.ask("GET", "/api/notify").body.decode()
    )
    for secret in (SECRET, HEADER):
        assert secret not in said
        assert [
            path for path, text in texts_below(site.place).items() if secret.encode() in text
        ] == []
    assert OF_THE_JOB not in said
    check_books(site)


def test_the_receiver_of_the_documentation_takes_nothing_that_is_not_signed(
    there: Receiver,
) -> None:
    for headers in (
        {},
        {"X-Jobscribe-Signature": "sha256=00", "X-Jobscribe-Timestamp": "1700000000"},
    ):
        connection = http.client.HTTPConnection("127.0.0.1", there.port, timeout=20)
        connection.request("POST", "/", b'{"id": "x"}', headers)
        assert connection.getresponse().status == 401
        connection.close()
    assert there.quiet()


def test_without_a_file_the_command_line_says_what_to_do_and_with_a_wrong_one_nothing_starts(
    make_site: Callable[..., SupervisorProcess], place: Path
) -> None:
    site = make_site().start()
    listed = site.command("notify", "list")
    assert listed.returncode == 0 and "notify.file" in listed.stderr
    site.stop()
    wrong = _private(place / "wrong.yml", "targets:\n  - name: a\n    url: http://example.org/\n")
    ended = site.fork_or_launch("--set", f"notify.file={wrong}")
    assert ended.stdout is not None and ended.wait(30) != 0
    ended.stdout.close()
    assert f"{wrong}:3" in site.log() and "allowHttp" in site.log()
    (site.root / "notifications.json").write_text("{")
    right = _private(place / "right.yml", "targets:\n  - name: a\n    command: [/bin/true]\n")
    ended = site.fork_or_launch("--set", f"notify.file={right}")
    assert ended.stdout is not None and ended.wait(30) != 0
    ended.stdout.close()
    assert "notifications.json is damaged" in site.log() and "remove it" in site.log()
