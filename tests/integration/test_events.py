"""Event, output and status subscriptions: events in order and without gaps across restarts, output
to its last line, a status as soon as it changes.
"""

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consistency_check import check_books, events
from supervisor_process import UID, SupervisorProcess, fresh_nap, jid_of, shell, spec, until

OTHER_UID = "SystemU2"


@pytest.fixture
def site(shared: SupervisorProcess) -> SupervisorProcess:
    return shared


class Stream:
    """One connection to `/api/events`, read by a thread."""

    def __init__(self, site: SupervisorProcess, query: str = "", last: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self._connection = site.connection(30)
        headers = {"Authorization": "Bearer " + site.token} | (
            {} if last is None else {"Last-Event-ID": str(last)}
        )
        self._connection.request("GET", "/api/events" + query, headers=headers)
        self._reply = self._connection.getresponse()
        assert (self._reply.status, self._reply.headers["Content-Type"]) == (
            200,
            "text/event-stream",
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            while line := self._reply.readline():
                name, colon, value = line.decode().rstrip("\n").partition(": ")
                if colon and name:
                    fields[name] = value
                elif not name and fields.get("data"):
                    self.ids.append(int(fields["id"]))
                    event = json.loads(fields["data"])
                    assert (event["position"], event["event"]["type"]) == (
                        int(fields["id"]),
                        fields["event"],
                    )
                    self.events.append(event)
                    fields = {}
                elif not name:
                    fields = {}
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return  # the connection was closed

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._reply.close()
        self._connection.close()


def test_events_come_in_order_and_a_cut_connection_goes_on_where_it_was(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site().start()
    first = Stream(site)
    runs = [spec(["true"]) for _ in range(20)]
    for run in runs:
        site.submit(run)
    until(lambda: len(first.events) >= 30, "some events came")
    first.close()
    seen = first.ids[-1]
    for run in runs:
        site.wait(run)
    site.stop(signal.SIGKILL)
    site.start()
    second = Stream(site, last=seen)
    head = site.ready()["head"]
    until(lambda: second.ids and second.ids[-1] == head, "the rest came")
    second.close()
    assert first.ids + second.ids == list(range(1, head + 1))
    stored = [(e["position"], e["stream"], e["event"]) for e in events(site.root)]
    assert [
        (e["position"], e["stream"], e["event"]) for e in first.events + second.events
    ] == stored
    check_books(site)


def test_a_reader_of_one_user_or_job_gets_nothing_of_others(site: SupervisorProcess) -> None:
    mine, theirs = spec(["true"], "SystemU3"), spec(["true"], OTHER_UID)
    of_user, of_job, from_now = (
        Stream(site, "?uid=SystemU3"),
        Stream(site, f"?computeJid={jid_of(theirs)}"),
        Stream(site, "?after=-1"),
    )
    site.finished(mine)
    site.finished(theirs)
    until(
        lambda: len(of_user.events) == 6 and len(of_job.events) == 6 and len(from_now.events) >= 12,
        "all events came",
    )
    for stream in (of_user, of_job, from_now):
        stream.close()
    assert {e["stream"] for e in of_user.events} == {"job/" + jid_of(mine)}
    assert {e["stream"] for e in of_job.events} == {"job/" + jid_of(theirs)}
    assert from_now.events[0]["stream"] == "job/" + jid_of(mine)


# ---- output


def follow(site: SupervisorProcess, run: dict[str, Any], **fields: Any) -> Iterator[bytes]:
    offset = fields.pop("offset", 0)
    while True:
        part = site.output(run, offset=offset, waitSecs=5, **fields)
        yield part.body
        offset = int(part.headers["X-Jobscribe-Next-Offset"])
        if part.headers["X-Jobscribe-End"] == "true":
            return


def test_output_is_followed_from_before_the_start_to_the_last_line(site: SupervisorProcess) -> None:
    lines = "".join(f"line {n}\n" for n in range(300))
    run = shell(
        "n=0; while [ $n -lt 300 ]; do echo line $n; n=$((n + 1)); [ $((n % 50)) = 0 ] && sleep 0.05; done; echo to stderr >&2; printf 'no newline'"
    )
    site.submit(run)
    parts = list(follow(site, run))
    assert b"".join(parts) == lines.encode() + b"no newline"
    assert len(parts) > 2, "it came while it was written"
    assert b"".join(follow(site, run, stream="stderr")) == b"to stderr\n"
    site.wait(run)
    assert b"".join(follow(site, run)) == lines.encode() + b"no newline"
    assert b"".join(follow(site, run, limit=7)) == lines.encode() + b"no newline"


def test_the_tail_and_any_offset_can_be_read(site: SupervisorProcess) -> None:
    gate = site.place / "gate"
    run = shell(f"echo 0123456789; until [ -e {gate} ]; do sleep 0.02; done; echo end")
    site.submit(run)
    site.running(run)
    until(lambda: site.output(run).body == b"0123456789\n", "it wrote something")
    assert site.output(run, tail=4).body == b"789\n"
    part = site.output(run, offset=4, limit=3)
    assert (
        part.body,
        part.headers["X-Jobscribe-Next-Offset"],
        part.headers["X-Jobscribe-End"],
    ) == (b"456", "7", "false")
    assert site.output(run, offset=11).headers["X-Jobscribe-End"] == "false"
    gate.touch()
    site.wait(run)
    assert site.output(run, tail=4).body == b"end\n"
    assert site.output(run, tail=100).body == b"0123456789\nend\n"
    beyond = site.output(run, offset=100)
    assert (beyond.body, beyond.headers["X-Jobscribe-End"]) == (b"", "true")


def test_what_was_never_written_ends_at_once(site: SupervisorProcess) -> None:
    run = shell("sleep 60", graceSecs=0, queueLimitSecs=100)
    site.submit(run)
    site.running(run)
    begun = time.monotonic()
    assert site.output(run, waitSecs=0.3).headers["X-Jobscribe-End"] == "false"
    assert 0.2 < time.monotonic() - begun < 10
    answer = site.ask(
        "POST",
        "/api/job-log",
        json.dumps({"uid": UID, "computeJid": jid_of(run), "attempt": 2}).encode(),
    )
    assert (answer.code, answer.json()["code"]) == (404, "notFound")
    site.cancel(run)
    assert list(follow(site, run)) == [b""]
    site.wait(run)


def test_output_of_agents_that_are_gone_can_still_be_read(site: SupervisorProcess) -> None:
    run = shell("echo kept; echo also kept >&2; exit 1")
    site.finished(run)
    agent, keeper = site.agent_pid(), site.keeper()["pid"]
    site.kill(keeper, signal.SIGTERM)
    until(
        lambda: agent not in site.titled("agent") and keeper not in site.titled("keeper"),
        "its agent is gone",
    )
    assert (site.output(run).body, site.output(run, "stderr").body) == (b"kept\n", b"also kept\n")


# ---- waiting


def test_a_status_that_is_waited_for_comes_as_soon_as_it_is_there(site: SupervisorProcess) -> None:
    nap = fresh_nap()
    run = spec(["sleep", nap], graceSecs=0)
    site.submit(run)
    site.running(run)
    begun = time.monotonic()
    said = site.status(run, waitSecs=0.3)
    assert said["state"] == "running" and 0.2 < time.monotonic() - begun < 10
    threading.Timer(0.3, lambda: _cancel_elsewhere(site, run)).start()
    begun = time.monotonic()
    said = site.status(run, waitSecs=20)
    assert (said["state"], said["over"]) == ("canceled", True)
    assert time.monotonic() - begun < 15


def _cancel_elsewhere(site: SupervisorProcess, run: dict[str, Any]) -> None:
    connection = site.connection()
    body = {"uid": UID, "computeJid": jid_of(run), "reqId": "elsewhere"}
    connection.request(
        "POST", "/api/run-cancel", json.dumps(body), {"Authorization": "Bearer " + site.token}
    )
    connection.getresponse().read()
    connection.close()


def test_many_who_wait_for_one_run_all_hear_of_it(site: SupervisorProcess) -> None:
    run = shell("sleep 0.5; exit 2")
    site.submit(run)
    heard: list[dict[str, Any]] = []

    def wait() -> None:
        connection = site.connection()
        connection.request(
            "POST",
            "/api/run-status",
            json.dumps({"uid": UID, "computeJid": jid_of(run), "waitSecs": 20}),
            {"Authorization": "Bearer " + site.token},
        )
        heard.append(json.loads(connection.getresponse().read()))
        connection.close()

    threads = [threading.Thread(target=wait) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [(h["state"], h["over"], h["exit"]["code"]) for h in heard] == [("error", True, 2)] * 30
