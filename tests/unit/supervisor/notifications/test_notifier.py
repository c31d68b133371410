"""Notifications from the log to the targets: filtering, restarts at any point, a full disk,
compactions, and no secrets in any output.
"""

import asyncio
import contextlib
import itertools
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from webhook_server import Receiver, receiver, reply

from jobscribe.db.events.events import (
    AgentSignInNeeded,
    AttemptEnded,
    Event,
    RunEnded,
    RunPurged,
    RunRequested,
    TaskEnded,
    TaskHeld,
    TaskPlaced,
    TaskStarted,
    agent_stream,
    job_stream,
)
from jobscribe.db.events.state import Retrying
from jobscribe.db.maintenance.compaction import compact
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.clock import SystemClock
from jobscribe.runtime.log.logger import Log, Record
from jobscribe.service.settings.loader import load
from jobscribe.supervisor.notifications import delivery_queue as queue_module
from jobscribe.supervisor.notifications.notifier import Notifications
from jobscribe.supervisor.process.counters import Counters

SECRET = "4f1d0c6e2b7a98350fdeca1b"
UID = "user0001"
KEY = AgentKey("local", "sequential", UID, "localhost")


def jid_of(n: int = 1, uid: str = UID) -> str:
    return f"{uid}-sim{n:05d}-command"


def spec(n: int, uid: str = UID, **fields: Any) -> RunSpec:
    return RunSpec(
        uid=uid, simulation_id=f"sim{n:05d}", command=("true",), driver="local", **fields
    )


class House:
    """A root with a log, and the notifications of one supervisor after another."""

    def __init__(self, place: Path) -> None:
        self.place, self.store = place, MemoryStore(lambda call: call())
        self.counters, self.lines, self.redactor = Counters(), list[str](), Redactor()
        self.notifications: Notifications | None = None
        self._at = itertools.count(1_700_000_000)

    def write(self, record: Record) -> None:
        self.lines.append(record.message)

    def file(self, text: str) -> None:
        path = self.place / "notify.yml"
        path.write_text("targets:\n" + text)
        path.chmod(0o600)

    def hook(self, there: Receiver, name: str = "a", more: str = "") -> None:
        self.file(f"  - {{name: {name}, url: '{there.url}', timeoutSecs: 5{more}}}\n")

    def begin(self, why: Callable[[Any], Any] = lambda job: None) -> Notifications:
        settings = load(
            {"root": str(self.place), "notify.file": str(self.place / "notify.yml")}, env={}
        )
        self.notifications = Notifications(
            settings,
            SimpleNamespace(path=self.place),
            self.store,
            Log("supervisor", self.redactor, self),
            self.counters,
            self.redactor,  # type: ignore[arg-type]
            SystemClock(),
            why,
        )
        self.notifications.start()
        return self.notifications

    async def end(self) -> None:
        if self.notifications is not None:
            await self.notifications.close()

    async def die(self) -> None:
        """Stop as after kill -9: nothing more is sent or written."""
        assert self.notifications is not None
        self.notifications._cursors.write = lambda targets: None  # type: ignore[method-assign]
        await self.notifications.close()

    def kept(self) -> dict[str, Any]:
        """Return the stored state of each target; the initial state if there is no file."""
        try:
            said: dict[str, Any] = json.loads((self.place / "notifications.json").read_text())[
                "targets"
            ]
        except FileNotFoundError:
            return {name: {"cursor": -1, "waiting": ()} for name in ("a", "b", "slow", "quick")}
        return said

    def append(self, stream: str, *events: Event) -> None:
        version = len(self.store.read(stream))
        refused: list[object] = []
        self.store.append(
            Batch(writes=(Write(stream, version, events),)),
            lambda done: refused.append(done) if isinstance(done, Refusal) else None,
        )
        assert not refused, refused

    def at(self) -> float:
        return float(next(self._at))

    def run(
        self, n: int = 1, *, uid: str = UID, code: int = 0, serial: int = 1, **fields: Any
    ) -> int:
        """Append a run from its request to its end; return the position of the end."""
        jid, token, at = jid_of(n, uid), Token(jid_of(n, uid), serial, 1, "main", 0), self.at()
        exit_ = ExitInfo(started_at=at, ended_at=at, code=code, signal=None, source="keeper")
        status = "completed" if code == 0 else "error"
        self.append(
            job_stream(jid),
            RunRequested(
                at=at,
                serial=serial,
                spec=spec(
                    n, uid, simulation_type="crack", env={"CANARY": "canaryOfTheJob"}, **fields
                ),
                run_dir="/x",
                req_id="r",
            ),
            TaskPlaced(at=at, token=token, agent_key=KEY, op_id="o" * 32),
            TaskStarted(
                at=at, token=token, pid=1, start_ticks=1, started_at=at, host="h", boot_id="b"
            ),
            TaskEnded(at=at, token=token, exit=exit_),
            AttemptEnded(at=at, serial=serial, attempt=1, reason="its task is over"),
            RunEnded(
                at=at,
                serial=serial,
                status=status,
                reason="exit",
                error=None if code == 0 else f"it failed and said {SECRET}",
            ),
        )
        return self.store.head()


async def until(true: Callable[[], Any], what: str, secs: float = 25.0) -> Any:
    try:
        async with asyncio.timeout(secs):
            while not (found := true()):
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {secs:g} s: {what}")
    return found


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    await made.end()


async def told(there: Receiver, n: int) -> list[dict[str, Any]]:
    await until(lambda: len(there.got) >= n, f"{n} notifications have come", 10.0)
    return there.messages()


async def test_an_end_is_told_with_who_and_what_and_nothing_of_the_job(house: House) -> None:
    with receiver() as there:
        house.hook(there)
        house.redactor.add(SECRET)
        house.begin(lambda job: {"cause": "exit", "of": job.jid})
        position = house.run(code=3)
        (message,) = await told(there, 1)
    assert message == {
        "schema": "jobscribe.notification/1",
        "id": f"{jid_of()}/1/{position}",
        "at": 1_700_000_000.0,
        "target": "a",
        "event": "error",
        "state": "error",
        "previous": "running",
        "computeJid": jid_of(),
        "computeJobSerial": 1,
        "uid": UID,
        "simulationType": "crack",
        "driver": "local",
        "attempt": 1,
        "reason": "exit",
        "error": "it failed and said <REDACTED>",
        "why": {"cause": "exit", "of": jid_of()},
        "position": position,
    }
    await until(lambda: house.counters.all() == {"notify.delivered": 1}, "it is counted")


async def test_each_word_is_told_of_once_and_in_order(house: House) -> None:
    with receiver() as there:
        house.hook(
            there, more=", on: [pending, running, held, attemptEnded, ended, purged, signInNeeded]"
        )
        house.begin()
        house.run(1)
        jid = jid_of(2)
        token, stream, exit_ = (
            Token(jid, 1, 1, "main", 0),
            job_stream(jid),
            ExitInfo(started_at=1.0, ended_at=1.0, code=1, signal=None, source="keeper"),
        )
        house.append(
            stream,
            RunRequested(at=1.0, serial=1, spec=spec(2), run_dir="/x", req_id="r"),
            TaskPlaced(at=1.0, token=token, agent_key=KEY, op_id="o" * 32),
            TaskStarted(
                at=1.0, token=token, pid=1, start_ticks=1, started_at=1.0, host="h", boot_id="b"
            ),
            TaskHeld(at=2.0, token=token, exit=exit_, secs=60.0),
            TaskEnded(at=3.0, token=token, exit=exit_),
            AttemptEnded(
                at=3.0,
                serial=1,
                attempt=1,
                reason="failed",
                retry=Retrying(at=3.0, delay_secs=1.0, behavior="transient", reason="x"),
            ),
            RunEnded(at=4.0, serial=1, status="canceled", reason="cancel"),
            RunPurged(at=5.0, serial=1),
            TaskHeld(at=6.0, token=Token(jid, 7, 1, "main", 0), exit=exit_, secs=1.0),
        )
        house.append(
            agent_stream(KEY), AgentSignInNeeded(at=7.0, agent_key=KEY, attempt=1, reason="sign in")
        )
        messages = await told(there, 11)
    by_job = [(m["event"], m["previous"], m["state"]) for m in messages if m["computeJid"] == jid]
    assert by_job == [
        ("pending", "missing", "pending"),
        ("running", "pending", "running"),
        ("held", "running", "running"),
        ("attemptEnded", "running", "pending"),
        ("canceled", "pending", "canceled"),
        ("purged", "canceled", "job_run_purged"),
    ]
    assert [m["event"] for m in messages if m["computeJid"] == jid_of(1)] == [
        "pending",
        "running",
        "attemptEnded",
        "completed",
    ]
    (sign_in,) = [m for m in messages if m["computeJid"] is None]
    assert (sign_in["event"], sign_in["uid"], sign_in["reason"]) == (
        "signInNeeded",
        UID,
        "sign in",
    ) and sign_in["id"].startswith("agent/local.")
    assert len(messages) == len({m["id"] for m in messages}) == 11


async def test_filters_let_through_what_is_asked_for(house: House) -> None:
    with receiver() as there:
        house.file(
            "".join(
                f"  - {{name: {name}, url: '{there.url}', {what}}}\n"
                for name, what in (
                    ("user", "users: [other001]"),
                    ("type", "simulationTypes: [other]"),
                    ("driver", "drivers: [docker]"),
                    ("errors", "on: [error]"),
                    (
                        "all",
                        "on: [ended], simulationTypes: [crack], drivers: [local], users: [user0001, other001]",
                    ),
                )
            )
        )
        notifications = house.begin()
        house.run(1)
        house.run(2, uid="other001", code=1)
        await told(there, 4)
        await until(
            lambda: all(row["behind"] == 0 for row in notifications.status()["targets"]),
            "all have read everything",
        )
    assert sorted((m["target"], m["uid"]) for m in there.messages()) == [
        ("all", "other001"),
        ("all", UID),
        ("errors", "other001"),
        ("user", "other001"),
    ]


async def test_a_target_begins_when_it_is_new_or_has_a_new_name_and_goes_on_otherwise(
    house: House,
) -> None:
    with receiver() as there:
        house.run(1)
        house.hook(there)
        house.begin()
        await until(
            lambda: (house.place / "notifications.json").exists(), "where it begins is written down"
        )
        await house.die()
        house.run(2)
        house.begin()
        assert [m["computeJid"] for m in await told(there, 1)] == [jid_of(2)]
        await house.end()
        house.run(3)
        house.hook(there, name="b")
        house.begin()
        house.run(4)
        assert [(m["target"], m["computeJid"]) for m in await told(there, 2)] == [
            ("a", jid_of(2)),
            ("b", jid_of(4)),
        ]
        await until(lambda: set(house.kept()) == {"b"}, "the old name is forgotten")


async def test_what_was_answered_and_not_written_down_is_told_again_with_the_same_id(
    house: House,
) -> None:
    with receiver() as there:
        house.hook(there)
        notifications = house.begin()
        await until(lambda: (house.place / "notifications.json").exists(), "it has begun")
        notifications._cursors.write = lambda targets: None  # type: ignore[method-assign]
        house.run(1)
        house.run(2)
        await told(there, 2)
        await house.die()
        house.begin()
        messages = await told(there, 4)
        await until(
            lambda: (
                house.kept()["a"]["cursor"] == house.store.head()
                and not house.kept()["a"]["waiting"]
            ),
            "it is written down",
        )
        await house.die()
        house.begin()
        house.run(3)
        messages = await told(there, 5)
    ids = [m["id"] for m in messages]
    assert set(ids[:2]) == set(ids[2:4]) and len(set(ids)) == 3 and len(ids) == 5


async def test_a_full_disk_stops_nothing_and_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobscribe.supervisor.notifications.notifier.FULL_SECS", 0.05)
    with receiver() as there:
        house.hook(there)
        notifications = house.begin()
        await until(lambda: house.place.joinpath("notifications.json").exists(), "it has begun")
        blocked = house.place / f"notifications.json.{os.getpid()}.new"
        blocked.mkdir()  # a folder blocks the temporary file
        house.run(1)
        house.run(2)
        await told(there, 2)
        said = await until(lambda: notifications.status()["unwritten"], "it is said")
        assert (
            "notifications.json cannot be written" in said
            and house.counters.all()["notify.book"] == 1
        )
        blocked.rmdir()
        await until(
            lambda: (
                notifications.status()["unwritten"] is None
                and house.kept()["a"]["cursor"] == house.store.head()
            ),
            "it is written again",
        )
        assert sum("notifications continue" in line for line in house.lines) == 1 and any(
            "can be written again" in line for line in house.lines
        )


async def test_a_slow_target_holds_up_no_other_and_the_log_waits_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "MOST_WAITING", 20)
    release = threading.Event()

    def slowly(handler: Any) -> None:
        release.wait(30)
        reply(handler, 200)

    with receiver(slowly) as slow, receiver() as quick:
        house.file(
            f"  - {{name: slow, url: '{slow.url}', timeoutSecs: 60}}\n  - {{name: quick, url: '{quick.url}'}}\n"
        )
        notifications = house.begin()
        for n in range(1, 61):
            house.run(n)
        try:
            await told(quick, 60)
            row = notifications.status()["targets"][0]
            assert (row["waiting"], row["delivered"]) == (20, 0) and row["behind"] > 100
            assert len(slow.got) <= 4
            await until(
                lambda: len(house.kept()["slow"]["waiting"]) == 20,
                "what waits is on disk, and no more than that",
            )
        finally:
            release.set()
        await told(slow, 60)
        await until(lambda: notifications.status()["targets"][0]["delivered"] == 60, "all are told")
    assert [m["computeJid"] for m in quick.messages()] != [] and len(
        {m["id"] for m in slow.messages()}
    ) == 60


async def test_one_that_fails_is_tried_again_through_restarts_and_then_all_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "FIRST_PAUSE_SECS", 0.02)
    well = threading.Event()
    with receiver(lambda h: reply(h, 200 if well.is_set() else 500)) as there:
        house.hook(there)
        notifications = house.begin()
        house.run(1, code=1)
        house.run(1, serial=2)
        house.run(2)
        await told(there, 4)
        # there is no time of the next try while a try is under way
        row = await until(
            lambda: (r := notifications.status()["targets"][0])["nextTry"] is not None and r,
            "it waits for its next try",
        )
        assert (
            row["waiting"] == 3
            and row["failingSince"] is not None
            and row["lastError"] == "HTTP 500"
        )
        assert notifications.standing() == [
            {k: row[k] for k in ("name", "waiting", "failingSince", "lastError")}
        ]
        await until(
            lambda: sum(w["attempts"] for w in house.kept()["a"]["waiting"]) >= 2,
            "the tries are on disk",
        )
        await house.end()
        well.set()
        before = len(there.got)
        notifications = house.begin()
        notifications.retry("a")
        await until(lambda: notifications.status()["targets"][0]["delivered"] == 3, "all are told")
    after = there.messages()[before:]
    assert [m["computeJobSerial"] for m in after if m["computeJid"] == jid_of(1)] == [1, 2]
    assert notifications.standing()[0]["failingSince"] is None
    assert house.counters.all()["notify.failed"] >= 4


async def test_it_is_given_up_in_the_end_and_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "FIRST_PAUSE_SECS", 0.02)
    with receiver(lambda h: reply(h, 500)) as there:
        house.hook(there, more=", giveUpSecs: 0.3")
        notifications = house.begin()
        house.run(1)
        await until(lambda: notifications.status()["targets"][0]["givenUp"] == 1, "it is given up")
        tries = len(there.got)
        assert (
            tries >= 2
            and notifications.status()["targets"][0]["waiting"] == 0
            and house.counters.all()["notify.given_up"] == 1
        )
        assert any("given up after" in line and "HTTP 500" in line for line in house.lines)
        await until(lambda: house.kept()["a"]["waiting"] == [], "nor does it wait on disk")
        assert len(there.got) == tries


async def test_a_compaction_below_the_cursor_is_told_as_what_it_is(tmp_path: Path) -> None:
    house = House(tmp_path)
    (tmp_path / "db").mkdir()
    loop = asyncio.get_running_loop()

    async def opened() -> None:
        house.store = SqliteStore(
            tmp_path / "db" / "events.sqlite", lambda call: loop.call_soon_threadsafe(call)
        )  # type: ignore[assignment]

    async def settled(position: int) -> None:
        await until(lambda: house.store.head() >= position, "it is durable")

    await opened()
    with receiver(lambda h: reply(h, 500)) as down:
        house.hook(down, more=", on: [running, ended]")
        house.begin()
        house.run(1, code=1)
        await settled(6)
        await until(
            lambda: house.notifications is not None and len(house.kept()["a"]["waiting"]) == 2,
            "both wait",
        )
        await house.end()
    house.run(2)
    await settled(12)
    house.store.close()
    assert compact(tmp_path, older_than_secs=0.0, keep=False).jobs_folded == 2
    await opened()
    with receiver() as there:
        house.hook(there, more=", on: [running, ended]")
        house.begin()
        messages = await told(there, 2)
        await until(lambda: house.kept()["a"]["waiting"] == [], "nothing waits")
        house.run(3)
        await told(there, 4)
    await house.end()
    house.store.close()
    assert sorted(
        (m["event"], m["state"], m["computeJid"], m["changes"]) for m in messages[:2]
    ) == [
        ("folded", "completed", jid_of(2), 6),
        ("folded", "error", jid_of(1), 6),
    ]
    assert any("a compaction folded 2 pending changes" in line for line in house.lines)
    assert any("a compaction folded 6 changes of 1 jobs" in line for line in house.lines)
    assert [m["event"] for m in there.messages()[2:]] == ["running", "completed"]


async def test_a_test_shows_its_answer_and_waits_for_nobody(house: House) -> None:
    with receiver(lambda h: reply(h, 200, b"hello")) as there:
        house.hook(there)
        notifications = house.begin()
        said = await notifications.test("a")
        assert (said["delivered"], said["answer"], said["said"]) == (
            True,
            "hello",
            "HTTP 200",
        )
        (message,) = there.messages()
        assert message["event"] == "test" and message["id"].startswith("test/0/")
    for asked in (notifications.test("b"), asyncio.to_thread(notifications.retry, "b")):
        with pytest.raises(Refusal, match="known targets: a"):
            await asked


async def test_a_damaged_file_is_said_and_not_guessed_at(house: House) -> None:
    for text in (
        "{",
        '{"schema": "jobscribe.notifications/9", "targets": {}}',
        '{"schema": "jobscribe.notifications/1", "targets": {"a": 1}}',
    ):
        (house.place / "notifications.json").write_text(text)
        with receiver() as there:
            house.hook(there)
            with pytest.raises(Refusal, match="remove it"):
                house.begin()


async def test_without_a_file_of_targets_nothing_is_done(house: House) -> None:
    settings = load({"root": str(house.place)}, env={})
    n = Notifications(
        settings,
        SimpleNamespace(path=house.place),
        house.store,
        Log("supervisor", house.redactor, house),
        house.counters,
        house.redactor,
        SystemClock(),
    )  # type: ignore[arg-type]
    n.start()
    house.run(1)
    assert n.status() == {"targets": [], "unwritten": None} and n.standing() == []
    await n.close()
    assert not (house.place / "notifications.json").exists()
    with pytest.raises(Refusal, match=r"notify\.file"):
        await n.test("a")


async def test_no_secret_is_in_what_is_kept_logged_or_told(house: House) -> None:
    header = "canaryOfAHeader"
    for name, text in (("secret", SECRET), ("headers", f"Authorization: Bearer {header}\n")):
        (house.place / name).write_text(text)
        (house.place / name).chmod(0o600)
    with receiver(lambda h: reply(h, 500, f"you sent {header} and {SECRET}".encode())) as there:
        house.hook(there, more=", secretFile: secret, headersFile: headers, on: [pending, ended]")
        notifications = house.begin(lambda job: {"lastLines": f"it printed {SECRET}"})
        house.run(1, code=1)
        said = json.dumps([await notifications.test("a")])
        await until(lambda: house.kept()["a"]["waiting"], "it is on disk")
        shown = (
            said
            + json.dumps(notifications.status())
            + "\n".join(house.lines)
            + json.dumps(house.kept())
            + b"".join(body for _, body in there.got).decode()
        )
    assert there.url.rpartition("/")[0] in shown and "/hook" not in shown
    for secret in (SECRET, header, "canaryOfTheJob"):
        assert secret not in shown
    with contextlib.suppress(FileNotFoundError):
        assert SECRET not in (house.place / "notifications.json").read_text()
