"""Retention on the disk: what goes goes, the name of an execution stays, and a removal that was
interrupted anywhere is completed.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jobscribe.db.store.contract import IndexRow
from jobscribe.protocol.ids import Token
from jobscribe.runtime import failpoints
from jobscribe.service.settings.settings import RetentionSettings
from jobscribe.supervisor.files import evidence_files
from jobscribe.supervisor.files.evidence_files import (
    GOING,
    clear_leftover,
    measure,
    reduce,
    remove_evidence,
)
from jobscribe.supervisor.files.retention_sweeper import RetentionSweeper

DAY = 86_400.0
NOW = 2_000_000_000.0
FILES = ("script.sh", "exit.json", "stdout.log", "stderr.log")


def token(n: int, serial: float) -> Token:
    return Token(f"EvidUse1-simAAA{n:02d}-model", int(serial), 1, "main", 0)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    folder = tmp_path / "run"
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield folder, fd
    os.close(fd)


def fill(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    for file in FILES:
        (path / file).write_text("x")
    (path / "latest").symlink_to(".")
    return path


def always() -> bool:
    return True


def test_a_reduced_folder_keeps_its_output(runs: tuple[Path, int]) -> None:
    folder, fd = runs
    path = fill(folder, "one")
    planned = measure(fd, "one", reducible=True)
    assert reduce(fd, "one") == planned and planned.files == 2 and planned.bytes > 0
    assert sorted(p.name for p in path.iterdir()) == ["latest", "stderr.log", "stdout.log"]
    assert reduce(fd, "one").files == 0
    with pytest.raises(OSError):
        reduce(fd, "missing")


def test_a_removed_folder_leaves_a_name_that_takes_no_inode(runs: tuple[Path, int]) -> None:
    folder, fd = runs
    for n in range(3):
        fill(folder, f"e{n}")
        assert remove_evidence(fd, f"e{n}", always)
        assert remove_evidence(fd, f"e{n}", always), "twice is once"
    left = {p.name: p.lstat().st_ino for p in folder.iterdir()}
    assert sorted(left) == [".used", "e0", "e1", "e2"] and len(set(left.values())) == 1
    with pytest.raises(FileExistsError):
        os.mkdir("e1", dir_fd=fd)
    with pytest.raises(FileNotFoundError):
        remove_evidence(fd, "missing", always)


def test_a_full_shared_file_is_followed_by_another(
    runs: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fd = runs
    real, refused = os.link, []

    def link(*args: object, **options: object) -> None:
        if not refused:
            refused.append(args)
            raise OSError(errno.EMLINK, "too many links")
        real(*args, **options)  # type: ignore[arg-type]

    fill(folder, "e0")
    assert remove_evidence(fd, "e0", always)
    fill(folder, "e1")
    monkeypatch.setattr(os, "link", link)
    assert remove_evidence(fd, "e1", always) and refused
    inodes = {name: (folder / name).stat().st_ino for name in (".used", "e0", "e1")}
    assert inodes[".used"] == inodes["e1"] != inodes["e0"]


def test_without_an_exchange_of_names_an_empty_folder_stays(
    runs: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fd = runs

    def unsupported(*args: object) -> None:
        raise OSError(errno.EINVAL, "not on this file system")

    monkeypatch.setattr(evidence_files, "_exchange", unsupported)
    path = fill(folder, "one")
    assert remove_evidence(fd, "one", always)
    assert path.is_dir() and not list(path.iterdir()) and not list(folder.glob(GOING + "*"))


def test_a_link_in_the_place_of_a_folder_is_not_followed(runs: tuple[Path, int]) -> None:
    folder, fd = runs
    other = fill(folder.parent, "elsewhere")
    (folder / "one").symlink_to(other)
    assert remove_evidence(fd, "one", always)
    with pytest.raises(OSError):
        reduce(fd, "one")
    with pytest.raises(OSError):
        measure(fd, "one", reducible=False)
    assert len(list(other.iterdir())) == 5


@pytest.mark.process
@pytest.mark.parametrize("point", ["evidence.marked", "evidence.exchanged"])
def test_a_removal_that_is_killed_is_completed_and_its_token_stays_used(
    runs: tuple[Path, int], point: str
) -> None:
    folder, fd = runs
    fill(folder, "one")
    pid = os.fork()
    if pid == 0:
        failpoints.arm(f"{point}:1:{folder}/../struck")
        remove_evidence(fd, "one", always)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert os.path.lexists(folder / "one")
    for name in [p.name for p in folder.glob(GOING + "*")]:
        assert clear_leftover(fd, name, always)
    assert remove_evidence(fd, "one", always)
    assert sorted(p.name for p in folder.iterdir()) == [".used", "one"]


# ---- the sweeper


def row(t: Token, *, serial: int | None = None, ended_at: float | None, **fields) -> IndexRow:
    return IndexRow(
        jid=t.jid,
        uid=t.jid[:8],
        serial=serial or t.serial,
        simulation_type="heat",
        kind="parallel",
        driver="local",
        queued_at=1.0,
        started_at=2.0,
        ended_at=ended_at,
        reason="exit",
        position=1,
        **({"status": "completed", "busy": False} | fields),
    )


def sweeper(tmp_path: Path, rows: list[IndexRow], live: tuple[str, ...] = (), **settings):
    engine = SimpleNamespace(
        policy=SimpleNamespace(kept_plans=()),
        world=SimpleNamespace(jobs=dict.fromkeys(live)),
        durable=lambda jid: None,
    )
    store = SimpleNamespace(
        find_jobs=lambda prefix, limit: sorted(
            (r for r in rows if r.jid.startswith(prefix)), key=lambda r: r.jid
        )[:limit],
        jobs=lambda status, before, limit: [
            r for r in rows if r.status == status and (before is None or r.position < before)
        ],
    )
    return RetentionSweeper(
        engine,  # type: ignore[arg-type]
        store,  # type: ignore[arg-type]
        MagicMock(),
        lambda: NOW,
        RetentionSettings(**settings),
        tmp_path,
    )


async def test_a_pass_removes_what_the_rules_allow_and_a_dry_run_only_says_so(
    tmp_path: Path,
) -> None:
    agent = tmp_path / "agent" / "local.parallel.EvidUse1@localhost"
    old, middle, young = (token(n, NOW - days * DAY) for n, days in ((1, 400), (2, 40), (3, 3)))
    lives, superseded, unknown, unacknowledged = (token(n, NOW - 400 * DAY) for n in (4, 5, 6, 7))
    tokens = (old, middle, young, lives, superseded, unknown, unacknowledged)
    for t in tokens:
        fill(agent / "run", t.name)
    os.utime(agent / "run" / superseded.name, (NOW - 31 * DAY,) * 2)
    (agent / "ledger.jsonl").write_text(
        f'{{"use":"{unacknowledged.name}","token":"{unacknowledged}","ticks":1}}\n'
    )
    for t in (young, lives):
        (agent / "run" / t.name / "cores").mkdir()
        (agent / "run" / t.name / "cores" / "core.1").write_text("x")
    (agent / "run" / f"{GOING}left").mkdir()
    (agent / "agent.log").write_text("x")
    os.utime(agent / "agent.log", (NOW - 99 * DAY,) * 2)
    rows = [
        row(old, ended_at=NOW - 399 * DAY),
        row(middle, ended_at=NOW - 39 * DAY),
        row(young, ended_at=NOW - 2 * DAY),
        row(lives, ended_at=None, status="running", busy=True),
        row(superseded, serial=int(NOW) - 5, ended_at=NOW - 4),
        row(unacknowledged, ended_at=NOW - 399 * DAY),
    ]
    s = sweeper(tmp_path, rows, cores_secs=DAY)
    before = sorted(str(p) for p in agent.rglob("*"))
    planned = await s.sweep(dry_run=True)
    assert sorted(str(p) for p in agent.rglob("*")) == before
    assert s.total.kinds["evidence"].count == 0
    done = await s.sweep(at_once=True)
    assert (done.inspected, done.failed, done.complete) == (7, 0, True)
    for report in (planned, done):
        assert {k: (r.count, r.files) for k, r in report.kinds.items()} == {
            "evidence": (2, 2 * 6),
            "scripts": (1, 2),
            "cores": (1, 2),
            "profiles": (0, 0),
            "agentLogs": (0, 0),
            "records": (0, 0),
        }
    folders = {p.name: len(list(p.iterdir())) for p in (agent / "run").iterdir() if p.is_dir()}
    kept = (young, lives, unknown, unacknowledged)
    assert folders == {t.name: 5 for t in kept} | {middle.name: 3, lives.name: 6}
    assert {t.name for t in tokens} <= {p.name for p in (agent / "run").iterdir()}
    again = await s.sweep()
    assert not any(r.count for r in again.kinds.values()) and again.inspected == 5
    assert s.total.kinds["evidence"].count == 2 and (agent / "agent.log").exists()
    await s.close()


async def test_old_profiles_go_and_links_of_the_user_are_not_followed(tmp_path: Path) -> None:
    agent, users = tmp_path / "agent" / "local.parallel.EvidUse1@localhost", tmp_path / "user"
    old, role, young, link = (token(n, NOW - days * DAY) for n, days in enumerate((40, 40, 3, 40)))
    rows = [row(t, ended_at=t.serial + 9.0) for t in (old, role, young, link)]
    runs, folders = {}, {}
    for t in (old, role, young, link):
        fill(agent / "run", t.name)
        (agent / "run" / t.name / "profiled").touch()
        run_dir = users / "EvidUse1" / "command" / t.jid.split("-")[1] / "command"
        runs[t.jid] = SimpleNamespace(
            run_dir=str(run_dir),
            serial=t.serial,
            spec=SimpleNamespace(roles=(1,) if t is role else ()),
        )
        inside = run_dir / "main" / "0" if t is role else run_dir
        folders[t.name] = inside / "jobscribe-profiles" / f"{t.serial}-1-main-0"
        fill(folders[t.name].parent, folders[t.name].name)
    victim = fill(tmp_path, "victim")
    above = folders[link.name].parent
    above.rename(tmp_path / "moved")
    above.symlink_to(victim.parent)
    (tmp_path / folders[link.name].name).symlink_to(victim)
    s = sweeper(tmp_path, rows, scripts_secs=None)
    s._engine.durable = lambda jid: SimpleNamespace(job=SimpleNamespace(run=runs[jid]))
    planned = await s.sweep(dry_run=True)
    assert all(f.exists() for f in folders.values())
    done = await s.sweep(at_once=True)
    assert planned.kinds["profiles"] == done.kinds["profiles"] and done.failed == 0
    assert done.kinds["profiles"].count == 3  # the one behind the link is gone for its user
    there = {t: folders[t.name].exists() for t in (old, role, young)}
    assert there == {old: False, role: False, young: True}
    assert len(list(victim.iterdir())) == 5 and len(list((tmp_path / "moved").iterdir())) == 1
    assert [(agent / "run" / t.name / "profiled").exists() for t in (old, young)] == [False, True]
    assert (await s.sweep()).kinds["profiles"].count == 0
    await s.close()


async def test_profiles_are_found_after_their_evidence_has_gone(tmp_path: Path) -> None:
    agent, users = tmp_path / "agent" / "local.parallel.EvidUse1@localhost", tmp_path / "user"
    own, earlier, purged = (token(n, NOW - 5 * DAY) for n in range(3))
    newest = NOW - 4 * DAY
    rows = [
        row(own, ended_at=NOW - 4 * DAY),
        row(earlier, serial=int(newest), ended_at=newest + 9),
        row(purged, ended_at=NOW - 4 * DAY, status="job_run_purged"),
    ]
    runs, folders = {}, {}
    for t in (own, earlier, purged):
        fill(agent / "run", t.name)
        (agent / "run" / t.name / "profiled").touch()
        os.utime(agent / "run" / t.name, (newest, newest))
        run_dir = users / "EvidUse1" / "command" / t.jid.split("-")[1] / "command"
        runs[t.jid] = SimpleNamespace(
            run_dir=str(run_dir),
            serial=int(newest) if t is earlier else t.serial,
            spec=SimpleNamespace(roles=()),
        )
        inside = run_dir / "main" / "0" if t is earlier else run_dir
        folders[t.name] = inside / "jobscribe-profiles" / f"{t.serial}-1-main-0"
        fill(folders[t.name].parent, folders[t.name].name)
    ages = {"scripts_secs": DAY / 2, "evidence_secs": DAY, "superseded_secs": DAY}
    s = sweeper(tmp_path, rows, profiles_secs=8 * DAY, **ages)
    s._engine.durable = lambda jid: SimpleNamespace(job=SimpleNamespace(run=runs[jid]))

    async def passes() -> list[dict[str, tuple[int, int]]]:
        """Return count and bytes by kind, of a dry run, a pass, and another one."""
        reports = [await s.sweep(dry_run=dry) for dry in (True, False, False)]
        return [{k: (r.count, r.bytes) for k, r in done.kinds.items()} for done in reports]

    def left() -> list[list[str]]:
        return [
            sorted(p.name for p in f.iterdir()) if f.is_dir() else []
            for f in (agent / "run" / t.name for t in (own, earlier, purged))
        ]

    planned, done, again = await passes()
    assert planned == done and done["evidence"][0] == 3
    assert left() == [["profiled"], ["profiled"], []]
    assert [f.exists() for f in folders.values()] == [True, True, False]
    assert not any(count for count, _ in again.values())
    assert (agent / "run" / earlier.name).stat().st_mtime == newest, "its age counts from the end"
    s._wall = lambda: NOW + 5 * DAY
    planned, done, again = await passes()
    assert planned == done and done["profiles"][0] == 2
    assert left() == [[], [], []] and not any(f.exists() for f in folders.values())
    assert not any(count for count, _ in again.values())
    await s.close()


async def test_a_job_of_an_undurable_decision_is_left_alone(tmp_path: Path) -> None:
    agent = tmp_path / "agent" / "local.parallel.EvidUse1@localhost"
    t = token(1, NOW - 400 * DAY)
    fill(agent / "run", t.name)
    s = sweeper(tmp_path, [row(t, ended_at=NOW - 399 * DAY)], live=(t.jid,))
    assert (await s.sweep()).kinds["evidence"].count == 0
    await s.close()


async def test_logs_of_an_agent_without_evidence_go_when_they_are_old(tmp_path: Path) -> None:
    for name, age in (("old", 91), ("new", 89)):
        agent = tmp_path / "agent" / name
        (agent / "run").mkdir(parents=True)
        (agent / "agent.log.1").write_text("x")
        os.utime(agent / "agent.log.1", (NOW - age * DAY,) * 2)
    (tmp_path / "agent" / "without a run folder").mkdir()
    s = sweeper(tmp_path, [])
    assert (await s.sweep()).kinds["agentLogs"].count == 1
    assert [p.parent.name for p in tmp_path.rglob("agent.log*")] == ["new"]
    assert s.sizes()["agentLogsCount"] == 1
    await s.close()


async def test_old_ends_of_forgotten_executions_go_with_the_scripts(tmp_path: Path) -> None:
    agent, elsewhere = tmp_path / "agent" / "one", tmp_path / "elsewhere"
    for folder in (agent / "exits", elsewhere):
        folder.mkdir(parents=True)
        for name, age in (("1.jsonl", 31), ("2.jsonl", 29)):
            (folder / name).write_text("x")
            os.utime(folder / name, (NOW - age * DAY,) * 2)
    (tmp_path / "agent" / "two").mkdir()
    (tmp_path / "agent" / "two" / "exits").symlink_to(elsewhere)
    s = sweeper(tmp_path, [])
    for dry_run in (True, False):
        assert (await s.sweep(dry_run=dry_run)).kinds["scripts"].count == 1
    assert [p.name for p in (agent / "exits").iterdir()] == ["2.jsonl"]
    assert len(list(elsewhere.iterdir())) == 2, "a link of the user is not followed"
    await s.close()


async def test_old_records_of_purged_runs_go(tmp_path: Path) -> None:
    tokens = [token(n, NOW - 400 * DAY) for n in (1, 2, 3)]
    folder = tmp_path / "supervisor-job"
    folder.mkdir()
    for t in tokens:
        (folder / f"{t.jid}.json").write_text("{}")
    rows = [
        row(tokens[0], ended_at=NOW - 366 * DAY, status="job_run_purged"),
        row(tokens[1], ended_at=NOW - 364 * DAY, status="job_run_purged"),
        row(tokens[2], ended_at=NOW - 366 * DAY),
    ]
    s = sweeper(tmp_path, rows)
    assert (await s.sweep(dry_run=True)).kinds["records"].count == 1
    assert (await s.sweep()).kinds["records"].count == 1
    assert sorted(p.stem for p in folder.iterdir()) == [t.jid for t in tokens[1:]]
    assert (await s.sweep()).kinds["records"].count == 0
    await s.close()
