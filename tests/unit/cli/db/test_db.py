"""`jobscribe db ...` on a small store, as an operator types it."""

import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from store_fixtures import evolved

from jobscribe.db.events.events import SYSTEM, RunEnded, RunRequested, SupervisorStarted, job_stream
from jobscribe.db.events.state import Job
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal

Run = Any
JIDS = ["EPRSqtUW-i9btqxdR-command", "EPRSqtUW-ZaU3VvUy-command"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a root with the log of two jobs and no supervisor. The second job has the latest
    request.
    """
    return filled(tmp_path / "root")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Create the root of a site with two shards."""
    for k in "01":
        filled(tmp_path / "site/shards" / k)
    return tmp_path / "site"


def filled(root: Path) -> Path:
    store = SqliteStore(root / "db" / "events.sqlite", lambda told: told())
    for n, jid in enumerate(JIDS):
        spec = RunSpec(
            uid=jid[:8], simulation_id=jid[9:17], command=("date",), compute_job_hash="abc"
        )
        events = (
            RunRequested(
                at=10.0 + n, serial=5, spec=spec, run_dir="/run", req_id="request-" + str(n)
            ),
            RunEnded(
                at=20.0 - n,
                serial=5,
                status="error",
                reason="agentStartFailed",
                error="no \x1b[2Jagent",
            ),
        )
        job, usage = evolved(Job(jid=jid), events)
        append(
            store,
            Batch(
                writes=(Write(job_stream(jid), 0, events),), index=(index_row(job),), usage=usage
            ),
        )
    append(
        store,
        Batch(
            writes=(
                Write(
                    SYSTEM,
                    0,
                    (SupervisorStarted(at=30.0, session=1, pid=7, boot_id="b", version="1"),),
                ),
            )
        ),
    )
    store.close()
    return root


def append(store: SqliteStore, batch: Batch) -> None:
    answers: list[Appended | Refusal] = []
    told = threading.Event()
    store.append(batch, lambda answer: (answers.append(answer), told.set())[0])
    assert told.wait(20)
    assert isinstance(answers[0], Appended), answers


def test_a_whole_store_is_found_whole(run: Run, root: Path) -> None:
    ended = run("--root", str(root), "db", "check")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "no fault found")
    assert "5 events, 2 jobs" in ended.out
    assert run("--root", str(root), "db", "check", "--json").json()["ok"] is True


def test_damage_is_found_and_named(run: Run, root: Path) -> None:
    with sqlite3.connect(root / "db" / "events.sqlite") as connection:
        connection.execute(
            "UPDATE events SET body = replace(body, 'date', 'dote') WHERE position = 3"
        )
    connection.close()
    ended = run("--root", str(root), "db", "check")
    assert ended.code == 1
    assert "log at position 3" in ended.out
    assert "intact up to position 2" in ended.out
    assert run("--root", str(root), "db", "export").code == 125


def test_records_are_written_anew(run: Run, root: Path) -> None:
    assert not list((root / "supervisor-job").glob("*.json"))
    ended = run("--root", str(root), "db", "rebuild")
    assert (ended.code, ended.out) == (0, "5 events, 2 jobs\n")
    assert {p.name.removesuffix(".json") for p in (root / "supervisor-job").glob("*.json")} >= set(
        JIDS
    )
    assert run("--root", str(root), "db", "rebuild", "--json").json()["jobs"] == 2


def test_a_store_in_use_is_not_rebuilt(run: Run, root: Path) -> None:
    store = SqliteStore(root / "db" / "events.sqlite", lambda told: told())
    try:
        ended = run("--root", str(root), "db", "rebuild")
        assert ended.code == 125
        assert "in use" in ended.err
        assert "in use" in run("--root", str(root), "db", "check").out
    finally:
        store.close()


def damage_log(root: Path) -> None:
    with sqlite3.connect(root / "db" / "events.sqlite") as connection:
        connection.execute(
            "UPDATE events SET body = replace(body, 'date', 'dote') WHERE position = 3"
        )
    connection.close()


def test_a_damaged_log_is_repaired_when_that_is_wanted(run: Run, root: Path) -> None:
    damage_log(root)
    refused = run("--root", str(root), "db", "rebuild")
    assert refused.code == 125 and "jobscribe db repair" in refused.err
    asked = run("--root", str(root), "db", "repair")
    assert (
        asked.code == 1
        and "add --yes" in asked.err
        and "kept: 3 events; nothing is lost up to position 2" in asked.err
    )
    assert f"lost: 2 or more events of job {JIDS[1]}: no event of it is kept" in asked.err
    assert run("--root", str(root), "db", "repair", "--json").json()["damage"]["keptUpTo"] == 2
    assert run("--root", str(root), "db", "check").code == 1, "nothing was done yet"
    ended = run("--root", str(root), "db", "repair", "--yes")
    assert ended.code == 0 and "repaired: 3 events, 1 jobs kept" in ended.out
    assert Path(ended.out.split()[-1]).is_dir()
    assert run("--root", str(root), "db", "check").code == 0
    assert run("--root", str(root), "db", "repair").out == "no fault found\n"


def test_a_log_is_compacted_after_it_was_said_what_that_saves(run: Run, root: Path) -> None:
    would = run("--root", str(root), "db", "compact", "--dry-run")
    assert would.code == 0 and would.out.startswith("5 events would become 4: 2 of 2 jobs folded")
    assert run("--root", str(root), "db", "check", "--json").json()["events"] == 5
    ended = run("--root", str(root), "db", "compact", "--history", "3")
    assert (
        ended.out.startswith("5 events became 4: 2 of 2 jobs folded")
        and Path(ended.out.split("is in ")[1].split(";")[0]).is_dir()
    )
    assert "nothing to fold" in run("--root", str(root), "db", "compact").out
    said = run("--root", str(root), "db", "compact", "--json").json()
    assert (said["schema"], said["changed"], said["compacted"]["eventsAfter"]) == (
        "jobscribe.db.compact/1",
        False,
        4,
    )
    assert run("--root", str(root), "db", "check").code == 0
    assert (
        "2 earlier events folded into this one"
        in run("--root", str(root), "db", "story", JIDS[0]).out
    )


def test_young_jobs_are_not_folded(run: Run, root: Path) -> None:
    assert (
        "nothing to fold" in run("--root", str(root), "db", "compact", "--older-than", "36500").out
    )
    assert run("--root", str(root), "db", "compact", "--no-keep").code == 0
    assert not list((root / "db").glob("before-*"))


def test_a_backup_is_made_and_put_back(run: Run, root: Path, tmp_path: Path) -> None:
    store = SqliteStore(root / "db" / "events.sqlite", lambda told: told())
    ended = run("--root", str(root), "db", "backup", str(tmp_path / "b"))
    assert (
        ended.code == 0
        and "5 events up to position 5" in ended.out
        and ended.out.endswith("verified\n")
    )
    assert (
        "in use" in run("--root", str(root), "db", "restore", "--replace", str(tmp_path / "b")).err
    )
    store.close()
    for again, said in (
        (["backup", str(tmp_path / "b")], "not an empty folder"),
        (["restore", str(tmp_path / "b")], "--replace"),
        (["restore", str(tmp_path)], "is not a backup"),
    ):
        refused = run("--root", str(root), "db", *again)
        assert refused.code == 125 and said in refused.err
    restored = run(
        "--root", str(root), "db", "restore", "--replace", str(tmp_path / "b"), "--json"
    ).json()
    assert (restored["events"], restored["position"], restored["lostUpTo"]) == (5, 5, 5)
    assert (
        "the log continues from position 5" in run("--root", str(root), "db", "story", "system").out
    )
    assert run("--root", str(root), "db", "check").code == 0
    assert run(
        "--root", str(tmp_path / "new"), "db", "restore", str(tmp_path / "b")
    ).out.startswith("5 events, 2 jobs: the log continues")


def test_a_backup_of_a_site_has_all_shards_and_is_put_back(
    run: Run, sharded: Path, tmp_path: Path
) -> None:
    site, saved = ("--root", str(sharded), "db"), tmp_path / "b"
    made = run(*site, "backup", str(saved))
    assert made.code == 0, made.err
    assert [line[:9] for line in made.out.splitlines()] == ["shard 0: ", "shard 1: "]
    one = run(*site, "backup", "--shard", "1", str(tmp_path / "one"), "--json").json()
    assert one["shards"]["1"]["path"] == str(tmp_path / "one")
    assert {p.name for p in saved.iterdir()} == {"0", "1"}
    # a shard without its log is restored, too
    shutil.rmtree(sharded / "shards/1/db")
    for words, said in (
        (["backup", str(saved)], "not an empty folder"),
        (["restore", str(saved)], "shard 0: "),
        (["restore", str(tmp_path / "one"), "--replace"], "this root has the shards 0"),
        (["restore", "--shard", "2", str(saved)], "no shard 2"),
    ):
        refused = run(*site, *words)
        assert refused.code == 125 and said in refused.err, (words, refused.err)
    done = run(*site, "restore", str(saved), "--replace", "--json").json()["shards"]
    assert {k: (r["events"], r["jobs"]) for k, r in done.items()} == {"0": (5, 2), "1": (5, 2)}
    for source in (saved, tmp_path / "one"):
        again = run(*site, "restore", "--shard", "1", "--replace", str(source))
        assert again.code == 0 and again.out.startswith("shard 1: 5 events"), again.err
    assert run(*site, "check").code == 0
    alone = run("--root", str(tmp_path / "new"), "db", "restore", str(saved))
    assert alone.code == 125 and "site with shards (0, 1)" in alone.err


def test_an_incomplete_backup_of_a_site_changes_no_shard(
    run: Run, sharded: Path, tmp_path: Path
) -> None:
    site, saved = ("--root", str(sharded), "db"), tmp_path / "b"
    assert run(*site, "backup", str(saved)).code == 0
    (saved / "1/head").unlink()
    before = (sharded / "shards/0/db/events.sqlite").read_bytes()
    refused = run(*site, "restore", str(saved), "--replace")
    assert refused.code == 125 and "not a complete backup" in refused.err
    assert (sharded / "shards/0/db/events.sqlite").read_bytes() == before
    assert not list((sharded / "shards/0/db").glob("before-*"))


def test_a_failed_backup_of_a_site_leaves_nothing(run: Run, sharded: Path, tmp_path: Path) -> None:
    damage_log(sharded / "shards/1")
    refused = run("--root", str(sharded), "db", "backup", str(tmp_path / "b"))
    assert refused.code == 125 and "damaged" in refused.err
    assert not (tmp_path / "b").exists()


def test_a_restore_that_stops_says_what_is_restored(
    run: Run, sharded: Path, tmp_path: Path
) -> None:
    site, saved = ("--root", str(sharded), "db"), tmp_path / "b"
    assert run(*site, "backup", str(saved)).code == 0
    store = SqliteStore(sharded / "shards/1/db/events.sqlite", lambda told: told())
    refused = run(*site, "restore", str(saved), "--replace")
    store.close()
    assert refused.code == 125, refused.out
    assert "shard 1: " in refused.err and "restored already: shards 0" in refused.err


def test_each_shard_of_a_site_is_repaired(run: Run, sharded: Path) -> None:
    site = ("--root", str(sharded), "db")
    damage_log(sharded / "shards/1")
    asked = run(*site, "repair")
    assert asked.code == 1 and asked.out == "shard 0: no fault found\n"
    assert "shard 1: nothing was changed" in asked.err
    said = run(*site, "repair", "--json")
    assert said.code == 1 and said.json()["shards"]["1"]["repaired"] is None
    assert run(*site, "repair", "--shard", "0").out == "shard 0: no fault found\n"
    done = run(*site, "repair", "--yes")
    assert done.code == 0 and "shard 1: repaired: 3 events, 1 jobs kept" in done.out
    assert run(*site, "check").code == 0


@pytest.mark.parametrize(
    ("name", "jid"), [(JIDS[0], JIDS[0]), (JIDS[1][:12], JIDS[1]), ("last", JIDS[1])]
)
def test_a_story_is_told_without_a_supervisor(run: Run, root: Path, name: str, jid: str) -> None:
    ended = run("--root", str(root), "db", "story", name)
    first, *lines = ended.out.splitlines()
    assert (ended.code, first, len(lines)) == (0, "job/" + jid, 2)
    assert "requested" in lines[0]
    assert "\x1b" not in ended.out
    items = run("--root", str(root), "db", "story", name, "--json").json()["items"]
    assert [i["type"] for i in items] == ["RunRequested", "RunEnded"]


def test_the_story_of_the_system_is_told(run: Run, root: Path) -> None:
    assert "session 1 started" in run("--root", str(root), "db", "story", "system").out


@pytest.mark.parametrize("name", ["EPRSqtUW-", "zzzz", "local.sequential.EPRSqtUW@nowhere"])
def test_a_story_that_is_none_is_an_error(run: Run, root: Path, name: str) -> None:
    assert run("--root", str(root), "db", "story", name).code == 125


def test_all_events_are_exported_in_order(run: Run, root: Path) -> None:
    lines = run("--root", str(root), "db", "export").lines()
    assert [line["position"] for line in lines] == [1, 2, 3, 4, 5]
    assert [
        line["position"]
        for line in run("--root", str(root), "db", "export", "--after", "3").lines()
    ] == [4, 5]
    assert msgspec.convert(lines[0]["event"], RunRequested).spec.command == ("date",)


def test_a_root_without_a_store_is_an_error(run: Run, tmp_path: Path) -> None:
    for verb in (
        ["check"],
        ["rebuild"],
        ["story", "last"],
        ["export"],
        ["repair"],
        ["compact"],
        ["backup", str(tmp_path / "b")],
    ):
        ended = run("--root", str(tmp_path / "none"), "db", *verb)
        assert ended.code == 125, verb
        assert "no event store" in ended.err
    assert not (tmp_path / "none").exists()
    assert run("db", "check", "--url", "http://127.0.0.1:1").code == 2


@pytest.mark.parametrize(
    "args", [("story", JIDS[0]), ("check",), ("export",), ("rebuild",), ("repair",)]
)
def test_the_store_of_somebody_else_is_said_and_is_no_accident(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    real = os.listdir

    def refused(path: Any = ".") -> list[str]:
        if str(path) == str(root / "db"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", refused)
    ended = run("--root", str(root), "db", *args)
    assert (ended.code, ended.out) == (125, "")
    assert "belongs to another user" in ended.err and "as the owner of the root" in ended.err
