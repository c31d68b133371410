"""The run directory reaper: which runs the core purges, and that a purge does not touch a newer
directory.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jobscribe.db.store.contract import IndexRow
from jobscribe.protocol.ids import AgentKey, AgentKind, Token
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface.inputs import Purge, agent_key, jids, refusal_handle
from jobscribe.supervisor.files.run_dir_reaper import RunDirReaper

KEY = AgentKey("local", AgentKind.PARALLEL, "PurgeUs1", "localhost")


def finished(kit, **fields):
    stage = kit.Stage(kept_plans=frozenset({"premium"}))
    stage.submit(**fields)
    stage.up()
    stage.reports(kit.ended(stage.token()))
    return stage


def purge(stage, kit, *, serial=None, before=None):
    run = stage.job().run
    stage.tell(
        Purge(kit.jid_of(), serial or run.serial, run.ended_at if before is None else before)
    )
    return [(e.run_dir, e.serial) for e in stage.asked(fx.RemoveRunDir)]


def test_a_run_that_ended_long_ago_is_purged_once(kit):
    stage = finished(kit)
    run = stage.job().run
    assert purge(stage, kit) == [(run.run_dir, run.serial)]
    assert stage.job().status == "job_run_purged" and stage.events()[-1] == "RunPurged"
    assert purge(stage, kit) == [], "and not again"
    assert stage.events().count("RunPurged") == 1


@pytest.mark.parametrize("case", ["too young", "another run", "a kept plan"])
def test_what_is_not_meant_is_kept(kit, case):
    stage = finished(kit, active_plan="premium" if case == "a kept plan" else "free")
    run = stage.job().run
    assert (
        purge(
            stage,
            kit,
            serial=run.serial - 1 if case == "another run" else None,
            before=run.ended_at - 1 if case == "too young" else None,
        )
        == []
    )
    assert stage.job().status == "completed"


def test_a_run_that_lives_is_kept(kit):
    stage = kit.Stage()
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.tell(Purge(kit.jid_of(), token.serial, 9e9))
    assert stage.job().status == "running"
    stage.cancel()
    stage.tell(Purge(kit.jid_of(), token.serial, 9e9))
    assert stage.job().status == "canceled", (
        "its processes are being stopped: nothing is taken away from under them"
    )


def test_after_a_purge_the_same_request_is_a_new_run(kit):
    stage = finished(kit)
    first = stage.job().run.serial
    purge(stage, kit)
    stage.submit()
    assert stage.job().run.serial > first and stage.job().status == "pending"


def test_an_input_names_its_job_and_nobody_waits_for_it(kit):
    input_ = Purge(kit.jid_of(), 1, 0.0)
    assert (jids(input_), agent_key(input_), refusal_handle(input_)) == (
        (kit.jid_of(),),
        None,
        None,
    )


def purging(tmp_path: Path, rows: list[IndexRow], world: dict) -> tuple[RunDirReaper, list]:
    told: list = []
    engine = SimpleNamespace(
        tell=told.append,
        durable=lambda jid: None,
        world=SimpleNamespace(jobs=world),
        policy=SimpleNamespace(kept_plans=()),
    )
    store = SimpleNamespace(
        jobs=lambda *, status, before, limit: [
            r for r in rows if r.status == status and (before is None or r.position < before)
        ],
        head=lambda: 400,
    )
    now = lambda: SimpleNamespace(wall=1000.0, mono=50.0)
    return RunDirReaper(
        engine,
        store,
        MagicMock(),
        now,
        user_root=str(tmp_path),
        agents_root=str(tmp_path / "agent"),
        after_secs=10.0,
        every_secs=3600.0,
    ), told  # type: ignore[arg-type]


def row(jid: str, status: str, ended_at: float, position: int) -> IndexRow:
    return IndexRow(
        jid=jid,
        uid=jid[:8],
        status=status,
        serial=7,
        simulation_type="heat",
        kind="parallel",
        driver="local",
        busy=False,
        queued_at=1.0,
        started_at=2.0,
        ended_at=ended_at,
        reason="exit",
        position=position,
    )


async def test_a_directory_gets_out_of_the_way_at_once(tmp_path: Path) -> None:
    p, _ = purging(tmp_path, [], {})
    run_dir = tmp_path / "model"
    run_dir.mkdir()
    (run_dir / "old").write_text("x")
    p.remove(str(run_dir), 7)
    run_dir.mkdir()
    (run_dir / "new").write_text("x")
    await p.close()
    assert [f.name for f in tmp_path.rglob("*")] == ["model", "new"]


def evidence_of(tmp_path: Path, token: Token, key: AgentKey = KEY) -> Path:
    folder = tmp_path / "agent" / str(key) / "run" / token.name
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("x")
    return folder


async def test_the_evidence_of_all_executions_goes_with_the_directory(tmp_path: Path) -> None:
    p, _ = purging(tmp_path, [], {})
    (tmp_path / "model").mkdir()
    tokens = [Token("PurgeUs1-simAAA01-model", 7, n, "main", 0) for n in (1, 2, 3)]
    folders = [evidence_of(tmp_path, token) for token in tokens]
    p.remove(str(tmp_path / "model"), 7, [(KEY, tokens[0]), (KEY, tokens[1])])
    await p.close()
    assert [f.is_dir() for f in folders] == [False, False, True]
    p, _ = purging(tmp_path, [], {})
    p.remove(str(tmp_path / "model"), 7, [(KEY, tokens[2])])
    await p.close()
    assert not folders[2].is_dir(), "also without a directory"


async def test_evidence_behind_a_link_is_not_touched(tmp_path: Path) -> None:
    token = Token("PurgeUs1-simAAA01-model", 7, 1, "main", 0)
    other = evidence_of(tmp_path / "elsewhere", token)
    agent = tmp_path / "agent" / str(KEY)
    agent.mkdir(parents=True)
    (agent / "run").symlink_to(other.parent)
    (tmp_path / "model").mkdir()
    p, _ = purging(tmp_path, [], {})
    p.remove(str(tmp_path / "model"), 7, [(KEY, token)])
    await p.close()
    assert (other / "stdout.log").exists() and not (tmp_path / "model").exists()


async def test_after_a_crash_evidence_is_removed_before_the_renamed_directory(
    tmp_path: Path,
) -> None:
    token = Token("PurgeUs1-simAAA01-model", 7, 1, "main", 0)
    folder = evidence_of(tmp_path, token)
    left = tmp_path / "PurgeUs1/heat/simAAA01/.purged-model-7"
    left.mkdir(parents=True)
    p, _ = purging(tmp_path, [], {})
    task = SimpleNamespace(agent_key=KEY, token=token)
    run = SimpleNamespace(serial=7, attempts=(SimpleNamespace(tasks=(task,)),))
    p._engine.durable = lambda jid: SimpleNamespace(job=SimpleNamespace(run=run))  # type: ignore[assignment,method-assign,misc]
    p._finish_removal(row("PurgeUs1-simAAA01-model", "job_run_purged", 900.0, 2))
    await p.close()
    assert not folder.is_dir() and not left.exists()


async def test_who_is_old_is_told_to_the_core_and_what_a_crash_left_is_removed(
    tmp_path: Path,
) -> None:
    rows = [
        row("PurgeUs1-simAAA01-model", "completed", 900.0, 4),
        row("PurgeUs1-simAAA02-model", "error", 995.0, 3),
        row("PurgeUs1-simAAA03-model", "job_run_purged", 900.0, 2),
        row("PurgeUs1-simAAA04-model", "job_run_purged", 900.0, 1),
    ]
    busy = SimpleNamespace(run=SimpleNamespace(serial=8))
    p, told = purging(tmp_path, rows, {"PurgeUs1-simAAA04-model": busy})
    left, newer = (tmp_path / "PurgeUs1/heat" / sid / "model" for sid in ("simAAA03", "simAAA04"))
    for folder in (left, newer):
        folder.mkdir(parents=True)
    p.start()
    deadline = asyncio.get_running_loop().time() + 5
    while left.exists() or not told:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await p.close()
    assert [(t.jid, t.serial, t.ended_before) for t in told] == [
        ("PurgeUs1-simAAA01-model", 7, 990.0)
    ]
    assert newer.exists(), "a newer run is about to begin there"


async def test_what_is_kept_for_its_plan_is_read_once_and_one_number_is_remembered_of_it(
    tmp_path: Path,
) -> None:
    """The memory does not grow with the number of kept runs. Later runs and runs that may be purged
    are still checked.
    """
    jids = [f"PurgeUs1-simAAA{n:02d}-model" for n in range(80)]
    rows = [row(jid, "completed", 900.0, 200 - n) for n, jid in enumerate(jids)]
    p, told = purging(tmp_path, rows, {})
    kept = SimpleNamespace(
        job=SimpleNamespace(run=SimpleNamespace(spec=SimpleNamespace(active_plan="premium")))
    )
    p._engine.policy, p._engine.durable = SimpleNamespace(kept_plans={"premium"}), lambda jid: kept  # type: ignore[assignment,method-assign,misc]
    for _ in range(3):
        await p._search(990.0)
    assert sorted(t.jid for t in told) == sorted(jids), "each was looked at once"
    assert p._kept_below == {"completed": 201}
    rows[:0] = [
        row("PurgeUs1-simAAA90-model", "completed", 995.0, 302),
        row("PurgeUs1-simAAA91-model", "completed", 980.0, 301),
    ]
    told.clear()
    await p._search(990.0)
    assert [t.jid for t in told] == ["PurgeUs1-simAAA91-model"]
    told.clear()
    await p._search(996.0)
    assert [t.jid for t in told] == ["PurgeUs1-simAAA90-model"], "it was too young the last time"
