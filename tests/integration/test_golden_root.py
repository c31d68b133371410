"""A root that a released version wrote and that a crash left behind opens and continues.

Archives in `golden_roots/` are never changed. `support/make_golden_root.py` writes one for a new
version.
"""

import errno
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from golden_root import (
    FOLDER,
    PLACE,
    answers,
    command,
    differences,
    log_length,
    records,
    results,
    unpack,
)
from supervisor_process import SupervisorProcess, jid_of, shell, until

from jobscribe.web.sign_in.login_sessions import Sessions

ARCHIVES = sorted(FOLDER.glob("*.tar.xz"))
SETS = (
    "slots.local_sequential=2",
    "slots.op_run=4",
    "resources.local_cpu=8",
    "resources.local_memory_mb=4000",
)

Make = Callable[..., SupervisorProcess]
Recorded = dict[str, Any]


def test_there_is_an_archive() -> None:
    assert ARCHIVES


@pytest.fixture
def old_place() -> Iterator[Path]:
    """Yield the folder that held the root of each archive. One test on this machine uses the folder
    at a time.
    """
    with socket.socket(socket.AF_UNIX) as mutex:
        until(lambda: _bound(mutex), f"no other test uses {PLACE}", secs=90.0, pause=0.2)
        shutil.rmtree(PLACE, ignore_errors=True)
        if PLACE.exists():
            pytest.skip(f"{PLACE} belongs to another user. Remove it first: rm -r {PLACE}")
        yield PLACE
        shutil.rmtree(PLACE, ignore_errors=True)


def _bound(mutex: socket.socket) -> bool:
    """Take the lock, an abstract socket name that is free as soon as its process ends."""
    try:
        mutex.bind("\0jobscribe-golden-root")
    except OSError as e:
        if e.errno != errno.EADDRINUSE:
            raise
        return False
    return True


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("moved", marks=pytest.mark.soak("the same test[adopted]")),
        "adopted",
        "in place",
    ],
)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_a_root_of_a_released_version_opens_and_goes_on(
    archive: Path, where: str, old_place: Path, make_site: Make
) -> None:
    recorded = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    site = make_site()
    if where == "in place":
        site.place.rmdir()
        site.place, site.root = old_place, Path(recorded["root"])
        old_place.mkdir(mode=0o700)
    told = set_target(site)
    unpack(archive, site.root)
    known = identity(site.root)
    check_stopped(site.root, recorded)
    if where == "adopted":
        assert "is now a separate root" in command(site.root, "db", "adopt")

    site.start()
    assert identity(site.root) == known
    assert site.token.encode() == known["server"]
    check_over(site, recorded)
    if where == "in place":  # the log stores absolute run directories
        jid = recorded["app"]
        found = results(site, jid, recorded["over"][jid]["computeJobSerial"])
        assert differences(recorded["results"], found) == []
    check_unfinished(site, recorded)
    check_new_runs(site, recorded)
    check_session(site.root, recorded)
    check_notifications(told, recorded)
    check_books(site)
    again = jid_of(recorded["again"])
    check_over(site, recorded, but=again)
    history = json.loads(records(site.root)[again])["history"]
    assert len(history) == 2, "the run from before the compaction, and the one after it"

    site.stop()
    command(site.root, "db", "check")
    before = records(site.root)
    command(site.root, "db", "rebuild")
    assert records(site.root) == before


def set_target(site: SupervisorProcess) -> Path:
    """Set a notification target with the name of the archive's target.

    Return the file to which the target appends the computeJid of each notification.
    """
    told, script, targets = (site.place / name for name in ("told", "pager", "notify.yml"))
    told.touch()
    script.write_text(f'#!/bin/sh\necho "$JOBSCRIBE_NOTIFY_JID" >>{told}\n')
    script.chmod(0o700)
    targets.write_text(f"targets:\n  - {{name: pager, command: [{script}]}}\n")
    targets.chmod(0o600)
    site._sets = (*site._sets, *SETS, f"notify.file={targets}")
    return told


def check_stopped(root: Path, recorded: Recorded) -> None:
    """Check that the log is complete and that a rebuild writes the records of the archive."""
    command(root, "db", "check")
    assert log_length(root) == recorded["events"]
    before = records(root)
    assert set(before) == {*recorded["over"], *recorded["live"].values()}
    command(root, "db", "rebuild")
    after = records(root)
    pairs = [(json.loads(before[jid]), json.loads(after[jid]), jid) for jid in before]
    assert [line for pair in pairs for line in differences(*pair)] == []


def check_over(site: SupervisorProcess, recorded: Recorded, but: str = "") -> None:
    """Check that each finished job has its status, exits, tasks, events, output and row in the
    list.
    """
    over = {jid: said for jid, said in recorded["over"].items() if jid != but}
    changed = [line for j in over for line in differences(over[j], answers(site, j), j)]
    words = ("--json", "job", "list", "--all-users", "--limit", "1000")
    rows = {row["jid"]: row for row in json.loads(command(site.root, *words))["items"]}
    for row in recorded["list"]["items"]:
        if row["jid"] in over:
            changed += differences(row, rows[row["jid"]], f"row of {row['jid']}")
    assert changed == []


def check_unfinished(site: SupervisorProcess, recorded: Recorded) -> None:
    """Check that the evidence decides how the interrupted runs ended, and that the pending run
    runs.
    """
    runs = {name: run_of(jid) for name, jid in recorded["live"].items()}
    ends = {name: site.wait(run) for name, run in runs.items()}
    told = {name: (said["state"], said["reason"]) for name, said in ends.items()}
    assert told == {
        "left": ("error", "lost"),
        "alone": ("error", "exit"),
        "pending": ("completed", "exit"),
    }
    exits = {name: said["exit"] for name, said in ends.items()}
    assert (exits["left"]["code"], exits["left"]["source"]) == (None, "lost")
    assert (exits["alone"]["code"], exits["alone"]["source"]) == (6, "keeper"), "exit.json is read"
    started = {row["jid"]: row["startedAt"] for row in recorded["list"]["items"]}
    for name in ("left", "alone"):
        assert exits[name]["startedAt"] == started[recorded["live"][name]], "start.json is read"
    outputs = {name: site.output(run).body for name, run in runs.items()}
    assert outputs == {"left": b"begun\n", "alone": b"begun\nended\n", "pending": b"ran at last\n"}


def check_new_runs(site: SupervisorProcess, recorded: Recorded) -> None:
    """Submit jobs: the same submission returns the finished run, a failed run runs again, and a new
    job runs.
    """
    good = recorded["completed"]
    serial = recorded["over"][jid_of(good)]["computeJobSerial"]
    assert site.submit(good)["computeJobSerial"] == serial
    again = site.finished({**recorded["again"], "computeJobHash": "third"})
    assert (again["state"], again["exit"]["code"]) == ("error", 2)
    fresh = shell("echo new; exit 7")
    assert site.finished(fresh)["exit"]["code"] == 7
    assert site.output(fresh).body == b"new\n"


def check_session(root: Path, recorded: Recorded) -> None:
    session = Sessions(root / "sessions.json").of(recorded["signIn"])
    assert session is not None and session.uid == recorded["uid"]


def check_notifications(told: Path, recorded: Recorded) -> None:
    """Check that undelivered notifications are delivered, and that others continue from the stored
    cursor.
    """
    wanted = {recorded["untold"], *recorded["live"].values()}
    until(
        lambda: told.exists() and wanted <= set(told.read_text().split()), "the last runs are told"
    )
    repeated = set(told.read_text().split()) & set(recorded["over"])
    assert repeated <= {recorded["untold"], jid_of(recorded["again"])}


def identity(root: Path) -> dict[str, Any]:
    """Return the secrets of the root by file name, and the identity that names its agents."""
    card = json.loads((root / "root.json").read_bytes())
    secrets = {path.name: path.read_bytes().strip() for path in (root / "secret").iterdir()}
    return {**secrets, "root.json": (card["id"], card["key"], card["uid"])}


def run_of(jid: str) -> dict[str, str]:
    uid, sid, model = jid.split("-")
    return {"uid": uid, "simulationId": sid, "computeModel": model}
