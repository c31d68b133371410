"""Regression tests for defects of the reference system that users see: RUN-1, 3, 7 to 10 and 13.

The numbers are from the reference's list of checks. Defects after a kill are in test_sirepo_deaths;
RUN-12 (a failed cluster query) is in tests/slurm/test_outages.py. Each time bound is five times the
promised one, because these tests check the outcome, not the speed. More tests are in
tests/web/test_defects.py, tests/integration/test_wire.py and tests/integration/test_secrets.py.
"""

import asyncio
import contextlib
import hashlib
import http.client
import json
import math
import re
import threading
import time
from pathlib import Path
from typing import Any

import in_process_supervisor
import msgspec
import pytest
from http_browser import Browser
from supervisor_process import SupervisorProcess, naps, rss, texts_below, until
from timed_waits import ANSWER_SECS, CANCEL_SECS, agent_id, asleep, record, running, telling, within

from jobscribe.protocol.wire.messages import RunReport, RunStatusUpdate
from jobscribe.runtime import processes

LONG = 600.0
#: Time limit of a call from a page, in seconds.
CALL_SECS = 4


@pytest.fixture(scope="module")
def site(sites: Any) -> SupervisorProcess:
    """Make a site with one slot for animations. A slot that a test leaks or holds too long blocks
    the run of the next test.
    """
    made: SupervisorProcess = sites.make(
        "slots.local_sequential=2", "slots.local_parallel=1", f"limits.call_secs={CALL_SECS}"
    )
    return made


# ---- RUN-1: a run that succeeds


def test_run_1_the_record_says_where_it_ran_and_the_log_holds_no_secret(
    browser: Browser, site: SupervisorProcess
) -> None:
    """In the reference the record's driverDetails were always empty, and the log had complete agent
    ids and tokens.
    """
    simulation = browser.simulation("heightWeightReport", "myapp")
    first = browser.finished(simulation)
    with within(ANSWER_SECS, "what was computed is answered from what is there"):
        assert browser.run(simulation)["computeJobSerial"] == first["computeJobSerial"]
    details = record(site, first)["driverDetails"]
    assert details["type"] == "local" and details["host"], details
    written = site.log() + "".join(
        t.decode(errors="replace")
        for p, t in texts_below(site.root).items()
        if p.suffix in (".log", ".jsonl")
    )
    whole = agent_id(site, browser.uid)
    assert f"a={whole[:4]} k=sequential" in written, "the log names the agent by 4 characters"
    for secret in (whole, site.token, (site.root / "secret" / "agents").read_text().strip()):
        assert secret not in written


# ---- RUN-3: a download that takes too long


def test_run_3_a_download_over_its_time_says_nothing_about_the_run(
    browser: Browser, site: SupervisorProcess
) -> None:
    """In the reference the record of the completed run became `canceled`, with a misspelled key."""
    simulation = browser.simulation("slowAnimation", "slow")
    before = browser.finished(simulation)
    answer = browser.download(simulation, "late")
    assert (answer.code, answer.json()["code"]) == (504, "deadline")
    after = browser.status(simulation)
    assert (after["state"], after["computeJobSerial"]) == ("completed", before["computeJobSerial"])
    assert "queuedState" not in record(site, after), "the record says so, too"
    assert browser.download(simulation).code == 200


# ---- RUN-7: one slot, and a queue for it


def test_run_7_who_waits_is_answered_at_once_and_may_leave_the_line(
    browser: Browser, site: SupervisorProcess
) -> None:
    """In the reference the request hung until a slot was free. After a cancel it still hung, and
    the canceled run kept its place in the queue.
    """
    holds, leaves, follows = (
        browser.simulation("slowAnimation", "slow", secs=s) for s in (LONG, LONG, 0.0)
    )
    bob, carol = (Browser(site).sign_in(n) for n in ("bob of run 7", "carol of run 7"))
    with contextlib.ExitStack() as afterwards, running(browser, holds):
        afterwards.callback(bob.cancel, leaves)
        with within(ANSWER_SECS, "everybody is answered at once"):
            assert bob.run(leaves)["state"] == "pending"
            waits = until(
                lambda: (s := bob.status(leaves))["queueState"] == "cpu_slot" and s,
                "it waits for the slot",
                ANSWER_SECS,
            )
            assert carol.run(follows)["state"] == "pending"
            assert re.search(r"\d", waits["jobStatusMessage"]), waits
            assert bob.cancel(leaves)["state"] == "canceled"
        assert bob.status(leaves)["over"], "nothing of it is left, though the slot is still taken"
        assert browser.status(holds)["state"] == "running"
        assert carol.status(follows)["state"] == "pending"
    assert carol.finished(follows, carol.status(follows))["state"] == "completed", (
        "the next in line has the slot"
    )
    assert bob.status(leaves)["state"] == "canceled" and "computeJobStart" not in bob.status(leaves)


# ---- RUN-8: large files and replies


def test_run_8_a_large_file_is_streamed_and_a_large_reply_is_refused_by_name(
    browser: Browser, site: SupervisorProcess
) -> None:
    """In the reference a file of 2 MB got a 404 if messages were limited to 1 MB."""
    simulation = browser.simulation("slowReport", "slow")
    browser.finished(simulation)
    before = rss(site.pid)
    answer = browser.download(simulation, "big")
    digest = hashlib.sha256((browser.run_dir(simulation) / "big.bin").read_bytes()).digest()
    assert (answer.code, len(answer.body), hashlib.sha256(answer.body).digest()) == (
        200,
        32 << 20,
        digest,
    )
    assert rss(site.pid) - before < 24 << 20, "not all of it at once"
    no = browser.refused("/stateless-compute", simulationType="slow", method="huge")
    assert (no["http"], no["code"]) == (413, "replyTooLarge")
    sizes = [int(n) for n in re.findall(r"\d+", no["error"].replace(",", ""))]
    assert 8 << 20 in sizes and max(sizes) >= 20 << 20, no["error"]


def test_run_8_a_run_whose_result_is_too_large_has_completed_and_says_why_it_is_not_shown(
    browser: Browser,
) -> None:
    """In the reference such an answer was treated as a missing file."""
    simulation = browser.simulation("slowReport", "slow", trouble="large")
    said = browser.finished(simulation)
    assert (said["state"], said["resultError"]["code"]) == ("completed", "replyTooLarge"), {
        k: v for k, v in said.items() if k != "text"
    }
    assert browser.download(simulation).code == 200


# ---- RUN-9: five small defects


def test_run_9_a_frame_of_an_earlier_run_is_refused(browser: Browser) -> None:
    """In the reference the answer was a 500."""
    simulation = browser.simulation("slowAnimation", "slow")
    first = browser.finished(simulation)
    assert browser.frame(simulation, first, 0).code == 200
    second = browser.finished(simulation, browser.run(simulation, forceRun=True))
    assert second["computeJobSerial"] > first["computeJobSerial"]
    late = browser.frame(simulation, first, 0)
    assert (late.code, late.json()["code"], late.json()["retry"]) == (409, "staleSerial", False)
    assert "no-store" in late.headers.get("Cache-Control", "no-store")
    assert browser.frame(simulation, second, 0).code == 200


@pytest.mark.parametrize("method", ["0x23", "__class__", "../../secret/server", "sleep\n"])
@pytest.mark.parametrize("path", ["/stateless-compute", "/stateful-compute", "/analysis-job"])
def test_run_9_a_method_that_there_is_not_leaves_no_trace_in_the_answer_and_none_on_the_disk(
    browser: Browser, site: SupervisorProcess, path: str, method: str
) -> None:
    """In the reference the browser got the Python traceback, and a record was made for a job of
    that name.
    """

    def files() -> set[Path]:
        return {
            p
            for name in ("supervisor-job", "user")
            for p in (site.root / name).rglob("*")
            if browser.uid in str(p)
        }

    before = files()
    target = (
        browser.simulation("slowAnimation", "slow")
        if path == "/analysis-job"
        else {"simulationType": "slow"}
    )
    no = browser.refused(path, **target, method=method)
    assert no["http"] in (400, 404) and no["code"] in ("badRequest", "notFound"), no
    assert files() == before
    assert browser.post("/own-jobs")["jobs"] == []


def test_run_9_what_a_code_reports_never_wins_over_what_is_known(browser: Browser) -> None:
    """In the reference the status of a parallel run always had the start time 0."""
    begun = time.time()
    lies = json.dumps(
        {
            "computeJobStart": 0,
            "state": "completed",
            "computeJobSerial": 1,
            "error": "?",
            "over": True,
            "frameCount": 3,
        }
    )
    simulation, _ = telling(browser, lines=lies)
    with running(browser, simulation) as reply:
        said = until(
            lambda: (s := browser.status(simulation)).get("frameCount") == 3 and s,
            "the report is there",
        )
        assert (said["state"], said["over"], said["computeJobSerial"], said.get("error")) == (
            "running",
            False,
            reply["computeJobSerial"],
            None,
        )
        assert begun - 5 < said["computeJobStart"] < time.time() + 5
        assert record(browser.site, said)["computeJobStart"] == said["computeJobStart"]


def test_run_9_a_cancel_with_another_hash_cancels_nothing_and_does_not_claim_to(
    browser: Browser,
) -> None:
    """In the reference the answer was `canceled`, and the run continued."""
    simulation, nap = telling(browser)
    with running(browser, simulation) as reply:
        pid = asleep(nap)
        assert reply["computeJobHash"] != "0" * 32
        for wrong in (
            {"computeJobHash": "0" * 32},
            {"computeJobSerial": reply["computeJobSerial"] + 1},
        ):
            assert browser.cancel(simulation, **wrong)["state"] == "missing"
            assert browser.status(simulation)["state"] == "running"
        assert naps(nap) == [pid]
        right = {k: reply[k] for k in ("computeJobHash", "computeJobSerial")}
        assert browser.cancel(simulation, **right)["state"] == "canceled"
        until(lambda: naps(nap) == [], "it is ended", CANCEL_SECS)


# ---- RUN-10: an analysis that does not end


def test_run_10_a_call_that_hangs_is_ended_and_everybody_else_is_served(browser: Browser) -> None:
    """In the reference the agent was not told which call to give up. All later calls of that user
    failed until the call ended by itself.
    """
    simulation = browser.simulation("slowReport", "slow")
    browser.finished(simulation)
    out: list[dict[str, Any]] = []
    window = browser.another_window()
    thread = threading.Thread(
        target=lambda: out.append(window.refused("/analysis-job", **simulation, method="hangs"))
    )
    with within(5.0 * (CALL_SECS + 2), "the call that hangs is refused at its deadline"):
        thread.start()
        hangs = browser.run_dir(simulation) / "hangs"
        pid = int(until(lambda: hangs.exists() and hangs.read_text(), "it hangs"))
        for n in range(10):
            assert browser.post(
                "/stateless-compute", simulationType="slow", method="sleep", args={"secs": n / 100}
            ) == {"slept": n / 100}
        assert thread.is_alive(), "they did not wait for it"
        thread.join()
    assert [(no["http"], no["code"]) for no in out] == [(504, "deadline")]
    assert processes.find(pid) is None, "and it is over"
    for _ in range(10):
        assert browser.post("/analysis-job", **simulation, method="sleep", args={"secs": 0.0}) == {
            "slept": 0.0
        }
        assert browser.download(simulation).code == 200


# ---- RUN-13: a stolen agentId, and NaN in a report


def test_run_13_an_agent_id_stands_where_no_job_can_read_it_and_opens_nothing(
    browser: Browser, site: SupervisorProcess
) -> None:
    """In the reference the agentId was in the agent's environment. A client that sent it was taken
    for the agent, and the real agent was disconnected.
    """
    simulation, nap = telling(browser)
    with running(browser, simulation) as reply:
        pid = asleep(nap)
        stolen = agent_id(site, browser.uid, "parallel")
        for process in site.everybody():
            assert stolen.encode() not in processes._read(
                f"/proc/{process}/environ"
            ) + processes._read(f"/proc/{process}/cmdline"), process
        assert not [
            p for p in [*site.place.rglob("*"), *Path("/tmp").glob("*")] if stolen in p.name
        ]
        before, lines = (
            site.ready()["counters"].get("rejected.unauthenticated", 0),
            site.log().count("opName=alive"),
        )
        key = str(site.agent_key(browser.uid, "parallel"))
        tries = [{}, {"X-Jobscribe-Agent": key}, {"X-Jobscribe-Agent": stolen}] + [
            {"X-Jobscribe-Agent": k, "Authorization": f"Bearer {t}"}
            for k in (key, stolen)
            for t in (stolen, site.token, stolen[:4])
        ]
        assert [_handshake(site, headers) for headers in tries] == [401] * len(tries)
        assert site.ready()["counters"]["rejected.unauthenticated"] == before + len(tries)
        said = browser.status(simulation)
        assert (said["state"], said["known"], said["computeJobSerial"]) == (
            "running",
            True,
            reply["computeJobSerial"],
        )
        assert naps(nap) == [pid] and site.log().count("opName=alive") == lines, (
            "the real agent did not lose its connection"
        )


def _handshake(site: SupervisorProcess, headers: dict[str, str]) -> int:
    """Return the status code for a client that connects like an agent; 101 means accepted."""
    said = json.loads((site.root / "agents.json").read_text())["agentsUrl"]
    host, _, path = said.removeprefix("ws://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=ANSWER_SECS)
    with contextlib.closing(connection):
        connection.request(
            "GET",
            "/" + path,
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                **headers,
            },
        )
        return connection.getresponse().status


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_run_13_a_number_that_is_none_in_a_report_poisons_nothing(
    browser: Browser, site: SupervisorProcess, number: str
) -> None:
    """In the reference NaN could not be stored. The record in memory stayed unstorable, and the
    agent was dropped.
    """
    simulation, _ = telling(
        browser,
        lines=f'{{"frameCount": 2, "percentComplete": 20.0}}\n{{"frameCount": 9, "percentComplete": {number}}}',
    )
    with running(browser, simulation):
        said = until(
            lambda: (s := browser.status(simulation)).get("frameCount") and s, "a report is there"
        )
        assert (said["state"], said["frameCount"], said["percentComplete"]) == ("running", 2, 20.0)
    ended = browser.status(simulation)
    assert (ended["state"], ended["percentComplete"]) == ("canceled", 20.0)
    until(
        lambda: record(site, ended)["parallelStatus"] == {"frameCount": 2, "percentComplete": 20.0},
        "so says its record",
    )
    simulation["models"]["tellingAnimation"]["nap"] = "0"
    again = browser.finished(simulation)
    assert (again["state"], again["percentComplete"]) == ("completed", 20.0)


def test_run_13_an_app_that_computes_such_a_number_is_named_and_its_run_goes_on(
    browser: Browser, site: SupervisorProcess
) -> None:
    simulation, nap = telling(browser, percent="nan")
    with running(browser, simulation):
        asleep(nap)
        assert browser.status(simulation)["percentComplete"] == 0.0
    report = browser.simulation("slowReport", "slow", trouble="nan")
    said = browser.finished(report)
    assert said["state"] == "error" and "plots[0].points[1] is NaN" in said["error"]
    assert record(site, said)["error"] == said["error"]
    report["models"]["slowReport"]["trouble"] = ""
    assert browser.finished(report)["state"] == "completed", "the slot is as good as before"


async def test_run_13_an_update_with_such_a_number_is_refused_and_the_run_is_none_the_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No agent of ours would send it. This in-process agent has the token."""
    local_site = in_process_supervisor.InProcessSupervisor(tmp_path / "hall", monkeypatch)
    await local_site.open()
    try:
        run = await local_site.submit()
        agent = await (await local_site.agent()).present()
        token = (await agent.run()).token
        await agent.report(token, "running")
        while (await local_site.status(run))["state"] == "pending":  # until that is durable
            await asyncio.sleep(0.01)
        for percent in (math.nan, 30.0, math.inf):
            await agent.say(RunReport(token=token, report={"percentComplete": percent}, at=1.7e9))
        await in_process_supervisor.until(
            lambda: local_site.counters.get("reportRefused") == 2, "two reports are refused"
        )
        now = in_process_supervisor.execution(token, "running")
        for n, field in enumerate(("started_at", "elapsed_secs")):
            await agent.say(
                RunStatusUpdate(execution=msgspec.structs.replace(now, **{field: math.nan}))
            )
            assert await agent.ended() == "malformed"
            assert local_site.counters["rejected.malformed"] == n + 1
            said = await local_site.status(run)
            assert (said["state"], said["parallelStatus"]) == (
                "running",
                {"percentComplete": 30.0},
            ), said
            agent = await (await local_site.agent()).present(now)
        last = in_process_supervisor.execution(token, "ended")
        assert last.exit is not None
        bad = msgspec.structs.replace(last.exit, report={"percentComplete": math.nan})
        await agent.say(RunStatusUpdate(execution=msgspec.structs.replace(last, exit=bad)))
        while not (said := await local_site.status(run, waitSecs=2))["over"]:
            assert said["state"] == "running", said
        assert (said["state"], said["exit"]["code"], said["parallelStatus"]) == (
            "completed",
            0,
            None,
        ), said
        assert local_site.counters["reportRefused"] == 3
    finally:
        await local_site.close()
