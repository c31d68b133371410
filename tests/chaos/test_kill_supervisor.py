"""kill -9 of the supervisor at any instant, under load: no acknowledged request is lost, nothing
runs twice, and no status is false.
"""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from consistency_check import check_books, events
from load_clients import UIDS, Load, Poll, Waiting, killed, let_all_go, wait
from oracle import Oracle
from site_locations import ROOM, dice, share
from supervisor_process import SupervisorProcess, jid_of, req_id, until

from jobscribe.client.sync_client import Client

CYCLES = share(3, 200)
LONG, QUEUED, SLOTS_LEFT = 50, 6, 3
#: Seconds until a status is true again after a restart.
TRUE_SECS = 5


@pytest.mark.timeout(120 + CYCLES * 10)
def test_whatever_instant_it_is_killed_at(
    make_site: Callable[..., SupervisorProcess], who: int | None
) -> None:
    site = make_site(
        who, f"slots.local_sequential={LONG + SLOTS_LEFT}", "slots.local_parallel=1"
    ).start()
    oracle = Oracle(site)
    chance = dice(f"supervisor/{who}")
    long = [oracle.gated(code=n % 3, uid=UIDS[0]) for n in range(LONG)]
    queued = [
        oracle.gated(gate="line", uid=UIDS[1], jobRunMode="parallel") for _ in range(1 + QUEUED)
    ]
    requests = {jid_of(run): req_id() for run in (*long, *queued)}
    serials = {
        jid_of(run): oracle.submit(run, requests[jid_of(run)])["computeJobSerial"]
        for run in (*long, *queued)
    }
    for run in (*long, queued[0]):
        until(lambda run=run: oracle.started(run), "it has started")
    done, done_request = oracle.job(uid=UIDS[0]), req_id()
    oracle.submit(done, done_request, forceRun=True)
    assert site.wait(done)["state"] == "completed"

    heard: list[int] = []
    waiting, follower = (
        Waiting(lambda: wait(site, long[1])),
        Waiting(lambda: _follow(site, long[1], heard)),
    )
    slowest = 0.0
    with Load(site, oracle, f"load/{who}") as load:
        for _ in range(CYCLES):
            time.sleep(chance.random() * 1.0)
            polls = [Poll(site, run) for run in (long[0], queued[1])]
            time.sleep(0.05)
            killed(site)
            for poll in polls:
                poll.check_cut_off()
            assert all(oracle.alive(run) for run in long), "jobs do not end with the supervisor"
            site.start()
            slowest = max(slowest, _true_again(oracle, long, queued))
            again = chance.choice([*long, *queued])
            assert (
                oracle.submit(again, requests[jid_of(again)])["computeJobSerial"]
                == serials[jid_of(again)]
            )
            oracle.submit(done, done_request, forceRun=True)  # long over, and still the same run
    print(
        f"{CYCLES} kills, {load.answered} short runs acknowledged, {load.repeated} tries without an answer, true again within {slowest:.1f} s"
    )
    assert load.answered > 5 * CYCLES and load.repeated >= CYCLES, "the load was one"

    let_all_go(site, oracle, "gate", long)
    let_all_go(site, oracle, "line", queued)
    ended = waiting.get()
    assert (ended.state, ended.exit.code if ended.exit else None) == ("error", 1)
    follower.get()
    for n, run in enumerate(long):
        said = oracle.status(run)
        assert (said["exit"]["code"], said["exit"]["source"]) == (n % 3, "keeper")
        assert site.output(run, tail=100).body == b"the last line\n"
    order = [
        s.token.split("/")[0]
        for s in oracle.stamps()
        if s.what == "start" and s.token.split("/")[0] in map(jid_of, queued)
    ]
    assert order == [jid_of(run) for run in queued], (
        "those that waited start in the order in which they came"
    )
    assert heard == _positions(site, UIDS[0], heard[-1]), (
        "who follows the events misses none and gets none twice"
    )
    check_books(site)
    print(oracle.check())


def _true_again(oracle: Oracle, long: list[dict[str, Any]], queued: list[dict[str, Any]]) -> float:
    """Check that no status is ever false and that every status becomes known. Return the seconds
    until then.
    """
    begun = time.monotonic()

    def known() -> bool:
        said = [oracle.status(run) for run in long]
        assert {s["state"] for s in said} == {"running"}, [
            s for s in said if s["state"] != "running"
        ]
        assert all(oracle.alive(run) for run in long)
        first, *rest = [oracle.status(run) for run in queued]
        assert first["state"] == "running" and {(s["state"], s["over"]) for s in rest} == {
            ("pending", False)
        }
        return all(s["known"] for s in (*said, first))

    until(known, "everything is known again", TRUE_SECS * ROOM)
    return time.monotonic() - begun


def _follow(site: SupervisorProcess, run: dict[str, Any], heard: list[int]) -> None:
    """Record all events visible to this user, from the first on, until this job ends."""
    with (
        Client.from_root(site.root, uid=run["uid"], budget_secs=120) as client,
        contextlib.closing(client.events(after=0)) as stream,
    ):  # type: ignore[type-var]
        for event in stream:
            heard.append(event.position)
            if event.event["type"] == "RunEnded" and event.stream == f"job/{jid_of(run)}":
                return


def _positions(site: SupervisorProcess, uid: str, last: int) -> list[int]:
    return [
        e["position"]
        for e in events(site.root)
        if e["stream"].startswith(f"job/{uid}-") and e["position"] <= last
    ]


# ---- start


def test_no_agent_is_let_in_before_the_log_is_folded(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    """An agent that is admitted earlier is forgotten when the engine starts, and its jobs stay
    unknown. A client connects all the time.
    """
    site = make_site(None).start()
    for _ in range(3):
        killed(site)
        over = threading.Event()
        dialing = Waiting(lambda over=over: _dial_until(site, over))  # type: ignore[misc]
        site.start()
        ready = f" {site.pid} "
        until(
            lambda ready=ready: any(ready in line and " ready at " in line for line in _log(site)),
            "its log says so, too",
        )
        over.set()
        assert dialing.get() > 0, "it dialed"
    assert _let_in_early(_log(site)) == []


def _log(site: SupervisorProcess) -> list[str]:
    return site.logged().splitlines()


def _let_in_early(log: list[str]) -> list[str]:
    """Return log lines about agent connections that precede the ready line of the same supervisor
    (by pid).
    """
    ready: set[str] = set()
    early = []
    for line in log:
        pid = line.split()[3] if len(line.split()) > 3 else ""
        if " ready at " in line:
            ready.add(pid)
        elif pid not in ready and (
            "refused a connection of an agent" in line or "opName=alive" in line
        ):
            early.append(line)
    assert len(ready) > 1, log[:3]
    return early


def _dial_until(site: SupervisorProcess, over: threading.Event) -> int:
    """Connect to the current agent listener with an invalid token, repeatedly. Return the number of
    answers.
    """
    answered = 0
    while not over.wait(0.0005):
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            url = json.loads((site.root / "agents.json").read_text())["agentsUrl"]
            with contextlib.closing(
                http.client.HTTPConnection(url.split("/")[2], timeout=5)
            ) as connection:
                connection.request(
                    "GET",
                    "/agent",
                    headers={
                        "Connection": "Upgrade",
                        "Upgrade": "websocket",
                        "Sec-WebSocket-Version": "13",
                        "Sec-WebSocket-Key": "bm9ib2R5IGF0IGFsbCE=",
                    },
                )
                connection.getresponse().read()
                answered += 1
    return answered
