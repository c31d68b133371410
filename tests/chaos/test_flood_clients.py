"""Clients that do not read, do not send, or do not stop: each is limited, other clients are served,
and all resources are released afterwards.
"""

import json
import os
import signal
import time

import pytest
from flooding import OTHER, UID, Memory, Trickle, bulk, connections, metrics, request, served, shell
from loop_lag import check_lag
from site_locations import ROOM, share
from supervisor_process import SupervisorProcess, fresh_nap, jid_of, naps, spec, until

from jobscribe.service import tickets

UNREAD = 40


@pytest.fixture
def site(make_site) -> SupervisorProcess:
    site = make_site(
        None, "output.head_bytes=4194304", "output.tail_bytes=4194304", "slots.local_sequential=4"
    )
    site.start()
    site.finished(spec(["/bin/true"]))
    served(site)
    return site


def back(site: SupervisorProcess, before: dict, secs: float = 20.0) -> None:
    """Wait until descriptors, tasks and per-client state are back to their earlier values."""

    def same() -> bool:
        now = metrics(site)
        sizes = {k: now[k] for k in ("run_service", "live", "unsent", "calls")}
        return (
            now["process"]["descriptors"] <= before["process"]["descriptors"] + 1
            and now["process"]["tasks"] <= before["process"]["tasks"] + 1
            and sizes == {k: before[k] for k in sizes}
        )

    try:
        until(same, "everything is as before", secs, 0.1)
    except BaseException:
        print("before", before, "\nafter", metrics(site))
        raise


@pytest.mark.timeout(300)
def test_readers_of_news_and_of_logs_who_never_read(site: SupervisorProcess) -> None:
    """Request streams with a job's output, the event log and pieces of output, and never read them."""
    run = shell("exec timeout 60 yes")
    site.submit(run)
    site.running(run)
    until(
        lambda: int(site.output(run, limit=1).headers["X-Jobscribe-Next-Offset"]) > 0, "it writes"
    )
    until(
        lambda: len(site.output(run, offset=1 << 20, limit=512 * 1024).body) == 512 * 1024,
        "there is enough to read",
    )
    before, memory = metrics(site), Memory(supervisor=site.pid, agent=site.agent_pid())
    jid = jid_of(run)

    def asks(i: int) -> bytes:
        match i % 3:
            case 0:
                return request(
                    site,
                    "GET",
                    f"/live?logs={jid}",
                    headers={tickets.HEADER: tickets.sign(site.token, UID, time.time())},
                )
            case 1:
                return request(site, "GET", "/api/events?after=0")
            case _:
                body = {"uid": UID, "computeJid": jid, "limit": 512 * 1024}
                # pipelined on one connection: only the first is started
                return request(site, "POST", "/api/job-log", body) * 4

    with connections(site, UNREAD * 3, asks, receive_bytes=4096):
        until(lambda: metrics(site)["live"]["streams"] == UNREAD, "the streams are open")
        deadline = time.monotonic() + share(2, 30)
        while time.monotonic() < deadline:
            served(site)
            memory.look()
        unsent = metrics(site)["unsent"]
    print(f"{UNREAD} of each: grown {memory.grown()} MiB, unsent {unsent}")
    assert memory.grown()["supervisor"] <= 32 + UNREAD / 2, (
        "and half a MiB for each piece that was asked for"
    )
    assert memory.grown()["agent"] <= 16
    assert unsent["bytes"] <= UNREAD << 19
    back(site, before)
    site.cancel(run)
    assert check_lag(site) == []


APP = """
import subprocess, time
from jobscribe.apps.app import App, Model, Prepared

def hang(lib, args):
    subprocess.Popen(["sleep", args["nap"]], start_new_session=True)
    time.sleep(600)

app = App(
    name="flood", title="Flood", version="1", models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("/bin/sh", "-c", run.data["shell"])), result=lambda run: {},
    stateless={"big": lambda args: "x" * args["size"]}, stateful={"hang": hang},
)
"""


@pytest.fixture
def app_site(make_site) -> SupervisorProcess:
    site: SupervisorProcess = make_site(
        None, "apps.also=flood=flood_app:app", modules={"flood_app.py": APP}
    )
    return site.start()


def big(site: SupervisorProcess, uid: str, mib: int) -> bytes:
    body = {
        "uid": uid,
        "jobCmd": "stateless_compute",
        "simulationType": "flood",
        "method": "big",
        "args": {"size": mib << 20},
    }
    return request(site, "POST", "/api/call", body)


@pytest.mark.timeout(120)
def test_who_does_not_take_large_answers_gets_no_more_of_them_and_others_do(
    app_site: SupervisorProcess,
) -> None:
    """A limit applies to the total size of one user's answers in memory. A refused client gets the
    reason and may retry.
    """
    site = app_site
    ask = {
        "uid": UID,
        "jobCmd": "stateless_compute",
        "simulationType": "flood",
        "method": "big",
        "args": {"size": 7 << 20},
    }
    for uid in (UID, OTHER):
        assert (
            len(site.ask("POST", "/api/call", json.dumps({**ask, "uid": uid}).encode()).body)
            == (7 << 20) + 2
        )
    until(
        lambda: metrics(site)["unsent"]["bytes"] == 0,
        "what was taken is not counted any more",
        ROOM,
    )
    before, memory = metrics(site), Memory(supervisor=site.pid)
    with connections(site, 24, lambda _: big(site, UID, 7), receive_bytes=4096):
        until(
            lambda: metrics(site)["counters"].get("refused.tooManyRequests", 0) >= 12,
            "what is over the bound is refused",
        )
        memory.look()
        assert 32 << 20 < metrics(site)["unsent"]["bytes"] <= 64 << 20
        refused = site.ask("POST", "/api/call", json.dumps(ask).encode())
        assert (refused.code, refused.json()["code"], refused.json()["retry"]) == (
            429,
            "tooManyRequests",
            True,
        )
        assert "have not been read yet" in refused.json()["error"]
        assert (
            len(site.ask("POST", "/api/call", json.dumps({**ask, "uid": OTHER}).encode()).body)
            == (7 << 20) + 2
        )
    print(f"24 answers of 7 MiB that nobody takes: grown {memory.grown()} MiB")
    assert memory.grown()["supervisor"] <= 3 * 64, (
        "and what is on its way: each is put together from its parts"
    )
    back(site, before)
    assert len(site.ask("POST", "/api/call", json.dumps(ask).encode()).body) == (7 << 20) + 2, (
        "there is room again"
    )
    assert check_lag(site) == []


@pytest.mark.timeout(120)
def test_a_call_at_its_deadline_is_over_with_all_its_processes_and_its_run_is_not_touched(
    app_site: SupervisorProcess,
) -> None:
    site = app_site
    nap, run = (
        fresh_nap(),
        spec((), simulationType="flood", computeModel="m", data={"shell": "exec sleep 300"}),
    )
    site.submit(run)
    before, story = site.running(run), site.story(run)
    ask = {
        "uid": UID,
        "jobCmd": "stateful_compute",
        "simulationType": "flood",
        "method": "hang",
        "args": {"nap": nap},
        "deadlineSecs": 1.0,
    }
    began = time.monotonic()
    answer = site.ask("POST", "/api/call", json.dumps(ask).encode())
    assert (answer.code, answer.json()["code"]) == (504, "deadline")
    assert time.monotonic() - began < 1 + ROOM
    until(lambda: not naps(nap), "nothing of the call is left", ROOM)
    after = site.status(run)
    assert {k: v for k, v in after.items() if k != "elapsedTime"} == {
        k: v for k, v in before.items() if k != "elapsedTime"
    }
    assert site.story(run) == story
    assert site.cancel(run)["state"] == "canceled"


@pytest.mark.timeout(120)
def test_connections_that_say_nothing_or_never_come_to_an_end(site: SupervisorProcess) -> None:
    before, memory = metrics(site), Memory(supervisor=site.pid)
    slow = request(site, "POST", "/api/run-many", "x" * 1_000_000)[:2000]
    forged = slow.replace(site.token.encode(), b"x" * len(site.token))
    with (
        connections(site, 500, lambda _: b""),
        connections(site, 20, lambda _: b"GET /livez HTTP/1.1\r\n") as endless,
        connections(site, 40, lambda i: slow if i % 2 else forged) as bodies,
        Trickle(endless, lambda n: b"X-Header-%d: %s\r\n" % (n, b"x" * 4000)) as headers,
        Trickle(bodies, lambda _: b"x" * 2000),
    ):
        served(site)
        until(lambda: headers.ended == 20, "endless headers are ended")
        served(site)
        memory.look()
    print(f"500 silent, 20 endless, 40 slow: grown {memory.grown()} MiB")
    assert memory.grown()["supervisor"] <= 32
    back(site, before)
    assert check_lag(site) == []


@pytest.mark.timeout(900)
def test_one_user_submits_ten_thousand_runs(site: SupervisorProcess) -> None:
    """Each run is acknowledged, and other clients are served meanwhile. The reason of a queued run
    has its queue position. A cancel removes all at once.
    """
    count = share(400, 10_000)
    holders = [shell("sleep 1000") for _ in range(4)]
    for run in holders:
        site.submit(run)
        site.running(run)
    runs = [spec(["/bin/true"], graceSecs=0) for _ in range(count)]
    before, memory = metrics(site), Memory(supervisor=site.pid)
    begun = time.monotonic()
    replies = bulk(site, runs)
    assert [r["state"] for r in replies] == ["pending"] * count
    took = time.monotonic() - begun
    waits = site.status(runs[-1])
    assert waits["queueState"] == "op_slot" and waits["jobStatusMessage"].endswith(
        f"({count - 1} of them ahead)"
    ), waits
    begun = time.monotonic()
    for n in range(100):
        site.status(runs[-1 - n])
    each = (time.monotonic() - begun) / 100
    there = "u=Syst []) opName=alive"
    times = site.log().count(there)
    site.kill(site.agent_pid())  # the agent restarts, and its runs ask for slots again
    until(lambda: site.log().count(there) > times, "its next agent is there")
    until(lambda: site.status(runs[0])["queueState"] == "op_slot", "its agent is back")
    memory.look()
    print(
        f"{count} runs accepted in {took:.1f} s; a status takes {each * 1000:.1f} ms; grown {memory.grown()} MiB"
    )
    canceled = runs[100 :: count // 50]  # the first ones may wait with the agent
    for run in canceled:
        assert site.cancel(run)["over"], "a queued run is over with its cancel"
    left = count - len(canceled)
    assert f"({left - 1} of them ahead)" in site.status(runs[-1])["jobStatusMessage"]
    for run in holders:
        site.cancel(run)
    until(lambda: not site.post("job-list", active=True, limit=1)["jobs"], "all have run", 600, 0.2)
    assert memory.grown()["supervisor"] <= 32 + count * 6 / 1024, (
        "and 6 KiB for each run that waits"
    )
    back(site, before)
    assert check_lag(site) == []


@pytest.mark.timeout(120)
def test_a_stalled_agent_while_ops_are_sent(site: SupervisorProcess) -> None:
    """Every request to the agent gets an answer by its deadline; other clients are served; the
    agent then continues normally.
    """
    run = shell("echo here; exec sleep 600")
    site.submit(run)
    site.running(run)
    before, memory = metrics(site), Memory(supervisor=site.pid)
    agent = site.agent_pid()
    waiting = [shell("true") for _ in range(2)]
    os.kill(agent, signal.SIGSTOP)
    try:
        body = {"uid": UID, "computeJid": jid_of(run)}
        with connections(
            site, 300, lambda _: request(site, "POST", "/api/job-log", body)
        ) as asking:
            for other in waiting:
                assert site.submit(other)["state"] == "pending"
            canceled = site.cancel(waiting[0])
            assert canceled["state"] == "canceled", "a cancel is accepted without its agent"
            until(lambda: metrics(site)["hub"]["asked"] == 300, "the agent is asked by all")
            served(site)
            memory.look()
            answers = [s.recv(4096) for s in asking]  # 10 s, by `outputs.ANSWER_SECS`
        assert {a.split(b" ")[1] for a in answers} <= {b"503", b"504"}, answers[0]
        assert metrics(site)["hub"]["asked"] == 0
    finally:
        os.kill(agent, signal.SIGCONT)
    assert site.wait(waiting[1])["state"] == "completed"
    assert site.wait(waiting[0])["state"] == "canceled"
    assert site.output(run).body == b"here\n"
    assert memory.grown()["supervisor"] <= 32
    site.cancel(run)
    site.wait(run)
    back(site, before)
    assert check_lag(site) == []
