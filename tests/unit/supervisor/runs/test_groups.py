"""Arrays and groups in the run service: all indices or none, one answer for all of them, and
cancels that do not affect later runs.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from in_memory_supervisor import OTHER, UID, Agent, InMemorySupervisor, until

from jobscribe.db.events.events import StopRequested
from jobscribe.protocol.api.requests import GroupCancel, JobGroup, RunArray, RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.runs import groups, outcome_cache
from jobscribe.supervisor.runs.groups import cancel_group, group, submit_array

SID = "simarr01"


def array(
    indices: str, req_id: str = "request1", uid: str = UID, sid: str = SID, **fields: Any
) -> RunArray:
    return RunArray(
        req_id=req_id,
        run=RunSpec(uid=uid, simulation_id=sid, **{"command": ("true",), **fields}),
        indices=indices,
    )


def jid(n: int | str, sid: str = SID) -> str:
    return f"{UID}-{sid}-command_{n}"


async def asked(
    in_memory: InMemorySupervisor, uid: str = UID, sid: str = SID, **fields: Any
) -> dict[str, Any]:
    return await group(in_memory.desk, JobGroup(uid=uid, simulation_id=sid, **fields))


async def canceled(
    in_memory: InMemorySupervisor,
    req_id: str = "cancel01",
    uid: str = UID,
    sid: str = SID,
    **fields: Any,
) -> dict[str, Any]:
    return await cancel_group(
        in_memory.desk, GroupCancel(req_id=req_id, uid=uid, simulation_id=sid, **fields)
    )


def end(in_memory: InMemorySupervisor, agent: Agent, **codes: int) -> None:
    """End tasks: `end(in_memory, agent, _3=1)` ends index 3 with exit code 1."""
    for name, code in codes.items():
        token = next(t for t in reversed(in_memory.launched) if t.jid == jid(name[1:]))
        agent.running(token)
        agent.ended(token, code)


def counts(answer: dict[str, Any]) -> dict[str, int]:
    return {k: n for k, n in answer["counts"].items() if n}


def indices(answer: dict[str, Any]) -> list[int]:
    return [r["index"] for r in answer["runs"]]


async def refused(made: Any) -> Refusal:
    with pytest.raises(Refusal) as e:
        await made
    return e.value


# ---- submitting


async def test_one_request_makes_a_durable_run_of_each_index() -> None:
    in_memory = InMemorySupervisor()
    answer = await submit_array(in_memory.desk, array("0-129,500%200"))
    assert (answer["group"], answer["count"], answer["accepted"], answer["refusedCount"]) == (
        f"{UID}-{SID}",
        131,
        131,
        0,
    )
    assert (answer["indices"], answer["states"], answer["refused"]) == (
        "0-129,500%200",
        {"pending": 131},
        [],
    )
    rows = in_memory.store.group(f"{UID}-{SID}-", limit=1000)
    assert [r.jid for r in rows] == [jid(n) for n in (*range(130), 500)]
    run = in_memory.desk.job(UID, jid(500)).job.run
    assert run is not None and run.spec.env["ARRAY_INDEX"] == "500" and run.spec.at_once == 200


async def test_the_same_request_again_makes_nothing_more() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    first = await submit_array(in_memory.desk, array("0-69"))
    end(in_memory, agent, _3=1)
    head = in_memory.store.head()
    again = await submit_array(in_memory.desk, array("0-69"))
    assert in_memory.store.head() == head
    assert (again["accepted"], again["states"]) == (first["accepted"], {"pending": 69, "error": 1})


async def test_another_request_for_the_same_array_runs_only_what_did_not_complete() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-3"))
    end(in_memory, agent, _0=0, _1=7, _2=0, _3=9)
    answer = await submit_array(in_memory.desk, array("0-3", "request2"))
    assert answer["states"] == {"completed": 2, "pending": 2}
    assert counts(await asked(in_memory)) == {"completed": 2, "pending": 2}


async def test_what_cannot_be_is_refused_as_a_whole_and_nothing_is_stored() -> None:
    in_memory = InMemorySupervisor()
    for request in (
        array("9-0"),
        array("0-3", env={"ARRAY_INDEX": "1"}),
        array("0-3", driver="nowhere"),
        array("0-3", simulation_type="nothing"),
        array("0-3", env={"JOBSCRIBE_X": "1"}),
        array("0-3", command=()),
        array("0-9999", command=("x" * 10_000,)),
        array("0-20000"),
        array("0-3", compute_model="m" * 64),
    ):
        await refused(submit_array(in_memory.desk, request))
    assert in_memory.store.head() == 0
    assert (
        await refused(submit_array(in_memory.desk, array("0-9999", command=("x" * 10_000,))))
    ).code == "tooLarge"


async def test_where_some_are_refused_they_are_named_by_their_indices() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("2-4", env={"A": "1"}))
    answer = await submit_array(in_memory.desk, array("0-9", "request2", env={"A": "2"}))
    assert (answer["count"], answer["accepted"], answer["refusedCount"]) == (10, 7, 3)
    assert [(r["index"], r["code"]) for r in answer["refused"]] == [
        (2, "anotherRun"),
        (3, "anotherRun"),
        (4, "anotherRun"),
    ]


async def test_where_all_are_refused_so_is_the_request() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-4", env={"A": "1"}))
    assert (
        await refused(submit_array(in_memory.desk, array("0-4", "request2", env={"A": "2"})))
    ).code == "anotherRun"


async def test_a_supervisor_that_stops_has_the_request_sent_again() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-4"))
    in_memory.desk.draining = True
    assert (
        await refused(submit_array(in_memory.desk, array("0-9", "request2")))
    ).code == "draining"
    assert (await refused(canceled(in_memory))).code == "draining"


# ---- counting


async def test_one_answer_counts_all_and_says_how_they_ended() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-11"))
    end(in_memory, agent, _0=0, _1=3, _2=3, _3=4, _10=0)
    await canceled(in_memory, indices="4,5")
    answer = await asked(in_memory)
    assert (answer["total"], answer["over"], answer["group"]) == (12, False, f"{UID}-{SID}")
    assert counts(answer) == {"completed": 2, "error": 3, "canceled": 2, "pending": 5}
    assert [(e["state"], e["reason"], e["code"], e["count"]) for e in answer["exits"]] == [
        ("completed", "exit", 0, 2),
        ("canceled", "cancel", None, 2),
        ("error", "exit", 3, 2),
        ("error", "exit", 4, 1),
    ]
    rows = {r["index"]: r for r in answer["runs"]}
    assert list(rows) == list(range(12))
    assert (rows[3]["exit"], rows[3]["state"], rows[3]["over"]) == (
        {"code": 4, "signal": None},
        "error",
        True,
    )
    assert "4" in rows[3]["error"] and rows[9]["exit"] is None and rows[0]["exit"]["code"] == 0
    assert rows[11]["computeJid"] == jid(11) and rows[11]["computeJobSerial"] == in_memory.serial(
        jid(11)
    )


async def test_a_signal_is_told_from_a_code() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-1"))
    for token in list(in_memory.launched):
        agent.running(token)
        agent.ended(token, None, signal=9)  # type: ignore[arg-type]
    assert [
        (e["reason"], e["code"], e["signal"], e["count"]) for e in (await asked(in_memory))["exits"]
    ] == [("signal", None, 9, 2)]


async def test_pages_are_in_the_order_of_the_numbers_and_miss_nothing() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-24,100,1000"))
    seen: list[int] = []
    after = None
    for _ in range(9):
        page = await asked(in_memory, limit=4, after=after)
        seen += indices(page)
        after = page["next"]
        if after is None:
            break
    assert seen == [*range(25), 100, 1000]
    assert page["total"] == 27 and len(page["runs"]) == 3


async def test_failed_is_what_is_over_and_did_not_complete() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-5"))
    end(in_memory, agent, _0=0, _1=3)
    await canceled(in_memory, indices="2")
    assert indices(await asked(in_memory, status="failed")) == [1, 2]
    assert indices(await asked(in_memory, status="pending")) == [3, 4, 5]
    assert indices(await asked(in_memory, status="completed")) == [0]
    assert (await asked(in_memory, status="failed"))["total"] == 6


async def test_counts_alone_read_no_run() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-5"))
    end(in_memory, agent, _0=3)
    answer = await asked(in_memory, limit=0)
    assert (answer["runs"], answer["next"], answer["exits"], counts(answer)) == (
        [],
        None,
        None,
        {"error": 1, "pending": 5},
    )
    assert len(in_memory.desk.outcomes) == 0


async def test_somebody_elses_group_and_none_are_the_same() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-5"))
    nothing = [
        await refused(asked(in_memory, uid=OTHER)),
        await refused(canceled(in_memory, uid=OTHER)),
    ]
    nothing += [
        await refused(asked(in_memory, sid="simarr02", uid=OTHER)),
        await refused(canceled(in_memory, sid="simarr02", uid=OTHER)),
    ]
    assert [(e.code, e.sentence.replace("simarr02", SID)) for e in nothing] == [
        ("notFound", nothing[0].sentence)
    ] * 4
    assert counts(await asked(in_memory)) == {"pending": 6}


async def test_a_group_is_over_when_nothing_is_left_of_its_last_run() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-1"))
    end(in_memory, agent, _0=0)
    token = next(t for t in in_memory.launched if t.jid == jid(1))
    agent.running(token)
    assert (await canceled(in_memory))["canceled"] == 1
    waiting = asyncio.ensure_future(asked(in_memory, wait_secs=20.0, limit=0))
    await until(lambda: in_memory.desk.sizes()["watched"], "it waits")
    answer = await asked(in_memory)
    # canceled, but its process is alive
    assert (counts(answer), answer["over"], answer["busy"]) == (
        {"completed": 1, "canceled": 1},
        False,
        1,
    )
    assert not waiting.done()
    agent.ended(token, None, signal=15, stop_reason="cancel")  # type: ignore[arg-type]
    assert (await asyncio.wait_for(waiting, 10))["over"]


async def test_who_waits_is_answered_in_time_though_nothing_ends_and_leaves_nothing() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-1"))
    waiting = asyncio.ensure_future(asked(in_memory, wait_secs=0.5, limit=0))
    for n in range(200):
        agent.report(in_memory.launched[0], n=n)
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(waiting, 5)
    assert not answer["over"]
    assert in_memory.desk.sizes()["watched"] == 0


async def test_ends_are_read_once_and_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_cache, "KEPT", 3)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-5"))
    end(in_memory, agent, _0=1, _1=2, _2=3, _3=4, _4=5)
    first = await asked(in_memory)
    assert {(e["code"], e["count"]) for e in first["exits"]} == {(n, 1) for n in (1, 2, 3, 4, 5)}
    assert in_memory.desk.sizes()["ends"] == 3
    reads: list[str] = []
    read = in_memory.store.read
    monkeypatch.setattr(
        in_memory.store, "read", lambda stream, after=0: reads.append(stream) or read(stream, after)
    )
    rows = (await asked(in_memory, after=jid(2), status="error"))["runs"]
    assert [r["exit"]["code"] for r in rows] == [4, 5]


async def test_the_end_of_an_older_run_is_not_told_of_a_newer_one() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-1"))
    end(in_memory, agent, _0=7)
    (old,) = in_memory.store.group(f"{UID}-{SID}-", statuses=("error",))
    assert in_memory.desk.outcomes.get(old).code == 7
    await submit_array(in_memory.desk, array("0", "request2"))
    end(in_memory, agent, _0=9)
    assert [e["code"] for e in (await asked(in_memory, status="error"))["exits"]] == [9]
    # a row that was read before the newer run started
    assert outcome_cache.OutcomeCache(in_memory.store).get(old).code == 7


# ---- canceling


async def test_all_are_canceled_and_each_of_them_durably() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-99"))
    end(in_memory, agent, _0=0, _1=1)
    answer = await canceled(in_memory, reason="enough")
    assert (
        answer["asked"],
        answer["canceled"],
        answer["over"],
        answer["missing"],
        answer["repeated"],
    ) == (98, 98, 0, 0, False)
    assert counts(await asked(in_memory)) == {"completed": 1, "error": 1, "canceled": 98}
    stops = [
        s.event
        for s in in_memory.store.read_all(limit=10_000)
        if isinstance(s.event, StopRequested)
    ]
    assert len(stops) == 98 and {(s.reason, s.by, s.note) for s in stops} == {
        ("cancel", UID, "enough")
    }


@pytest.mark.parametrize(
    ("fields", "hit"),
    [
        ({"indices": "3-5,7"}, [3, 4, 5, 7]),
        ({"models": ("command_2", "command_6")}, [2, 6]),
        ({"indices": "8-20"}, [8, 9]),
        ({"models": ()}, []),
        ({"indices": "50"}, []),
    ],
)
async def test_only_those_are_canceled_that_are_named(
    fields: dict[str, Any], hit: list[int]
) -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-9"))
    answer = await canceled(in_memory, **fields)
    assert (answer["asked"], answer["canceled"]) == (len(hit), len(hit))
    assert indices(await asked(in_memory, status="canceled")) == hit


async def test_what_is_named_and_not_there_is_counted() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-9"))
    assert (await canceled(in_memory, indices="8-20"))["missing"] == 11
    assert (await canceled(in_memory, "cancel02", models=("command_1", "other")))["missing"] == 1


async def test_those_that_wait_are_canceled_and_those_that_run_go_on() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-9"))
    for token in in_memory.launched[:4]:
        agent.running(token)
    assert (await canceled(in_memory, status="pending"))["canceled"] == 6
    assert counts(await asked(in_memory)) == {"running": 4, "canceled": 6}
    assert (await canceled(in_memory, "cancel02", status="running"))["canceled"] == 4


async def test_what_began_to_run_meanwhile_is_not_canceled_as_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-2"))
    token = next(t for t in in_memory.launched if t.jid == jid(1))
    rows = in_memory.store.group(f"{UID}-{SID}-")
    agent.running(token)
    monkeypatch.setattr(
        in_memory.store, "group", lambda *args, after=None, **kw: rows if after is None else []
    )
    await canceled(in_memory, status="pending")
    monkeypatch.undo()
    assert counts(await asked(in_memory)) == {"running": 1, "canceled": 2}


async def test_those_that_wait_go_first_so_that_none_begins_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-9"))
    for token in in_memory.launched[:3]:
        agent.running(token)
    order: list[str] = []
    cancel_each: Callable[[Any], Any] = in_memory.desk.cancel_each
    monkeypatch.setattr(
        in_memory.desk,
        "cancel_each",
        lambda requests: cancel_each(order.append(r.compute_jid) or r for r in requests),
    )
    await canceled(in_memory)
    assert order == [jid(n) for n in (9, 8, 7, 6, 5, 4, 3, 0, 1, 2)]


async def test_a_repeated_cancel_says_the_same_and_never_hits_what_came_later() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-4"))
    end(in_memory, agent, _0=0)
    first = await canceled(in_memory)
    # one completed run, two canceled ones, and one that did not exist before
    await submit_array(in_memory.desk, array("0-2,7", "request2"))
    again = await canceled(in_memory)
    assert (first["asked"], first["canceled"], first["repeated"]) == (4, 4, False)
    assert (again["asked"], again["repeated"]) == (4, True)
    assert counts(await asked(in_memory)) == {"canceled": 2, "pending": 4}
    assert (await canceled(in_memory, "cancel02"))["canceled"] == 4


async def test_a_cancel_that_found_nothing_to_cancel_finds_nothing_later_either() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-1"))
    end(in_memory, agent, _0=0, _1=0)
    assert (await canceled(in_memory))["asked"] == 0
    await submit_array(in_memory.desk, array("2-3", "request2"))
    assert ((await canceled(in_memory))["asked"], counts(await asked(in_memory))) == (
        0,
        {"completed": 2, "pending": 2},
    )


async def test_a_cancel_of_some_leaves_the_first_run_alone() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-3"))
    await canceled(in_memory, indices="2")
    await canceled(in_memory, indices="2")
    assert indices(await asked(in_memory, status="pending")) == [0, 1, 3]


async def test_a_cancel_that_names_too_much_is_refused() -> None:
    in_memory = InMemorySupervisor()
    await submit_array(in_memory.desk, array("0-3"))
    assert (
        "not both"
        in (await refused(canceled(in_memory, indices="1", models=("command_1",)))).sentence
    )
    assert "no %" in (await refused(canceled(in_memory, indices="1%2"))).sentence
    assert "reversed" in (await refused(canceled(in_memory, indices="3-1"))).sentence
    assert counts(await asked(in_memory)) == {"pending": 4}


async def test_ten_thousand_are_counted_without_holding_the_loop_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of reads between two pauses is bounded, on any machine."""
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    await submit_array(in_memory.desk, array("0-449"))
    end(in_memory, agent, **{f"_{n}": 1 + n % 3 for n in range(450)})
    reads, most = [0], [0]
    of, sleep = in_memory.desk.outcomes.get, asyncio.sleep
    monkeypatch.setattr(
        in_memory.desk.outcomes, "get", lambda row: reads.append(reads.pop() + 1) or of(row)
    )

    async def paused(secs: float) -> None:
        most.append(max(most.pop(), reads.pop()))
        reads.append(0)
        await sleep(secs)

    monkeypatch.setattr(groups, "HOLD_SECS", 0.0)
    monkeypatch.setattr(asyncio, "sleep", paused)
    answer = await asked(in_memory, limit=1000)
    assert most == [1]
    assert {(e["code"], e["count"]) for e in answer["exits"]} == {(1, 150), (2, 150), (3, 150)}
