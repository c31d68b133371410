"""Progress reports: the supervisor gets the latest report soon, at a limited rate and size, while
the job runs.
"""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobscribe
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.agent.jobs import progress_reports as reports_module
from jobscribe.agent.jobs.progress_reports import Reports
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs import progress_report as rules
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.codec import Encoder
from jobscribe.protocol.wire.messages import (
    REPORT_LIMIT,
    SNAPSHOT_PAGE,
    Execution,
    RunReport,
    Snapshot,
)

from ..conftest import until

TOKEN = Token("user1234-sim12345-heatAnimation", 17, 1, "main", 0)


class Watched:
    """The evidence of one execution, and the reports sent for it."""

    def __init__(self, place: Path) -> None:
        self.folder = place / TOKEN.name
        self.folder.mkdir()
        (self.folder / "input.json").touch()
        (self.folder / "report.jsonl").touch()
        self.sent: list[RunReport] = []
        self.evidence = Evidence(place)
        self.reports = Reports(self.evidence, self.sent.append)

    def say(self, **report: object) -> None:
        with (self.folder / "report.jsonl").open("a") as f:
            f.write(json.dumps(report) + "\n")

    async def hears(self, **report: object) -> None:
        deadline = time.monotonic() + 10
        while not self.sent or self.sent[-1].report != report:
            assert time.monotonic() < deadline, f"not told in time: {report}; {self.sent}"
            await asyncio.sleep(0.01)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    w = Watched(tmp_path)
    yield w
    w.reports.close()
    async with asyncio.timeout(5):
        while w.evidence.folders._watches:
            await asyncio.sleep(0.01)
    w.evidence.folders.close()


async def test_a_report_is_passed_on_with_its_time(watched: Watched) -> None:
    watched.reports.follow(TOKEN)
    watched.say(frameCount=1)
    await watched.hears(frameCount=1)
    assert watched.sent[0].token == TOKEN and abs(watched.sent[0].at - time.time()) < 60


async def test_what_was_said_before_anybody_looked_is_passed_on(watched: Watched) -> None:
    watched.say(frameCount=1)
    watched.say(frameCount=2)
    watched.reports.follow(TOKEN)
    await watched.hears(frameCount=2)
    assert len(watched.sent) == 1


async def test_the_first_report_after_a_pause_does_not_wait(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_module, "GAP_SECS", 60.0)
    watched.reports.follow(TOKEN)
    await asyncio.sleep(0)  # it looks at the empty file
    assert watched.evidence.folders._watches
    watched.say(frameCount=1)
    await watched.hears(frameCount=1)


async def test_a_flood_of_reports_is_thinned_and_its_last_one_arrives(watched: Watched) -> None:
    watched.reports.follow(TOKEN)
    begun = time.monotonic()
    for n in range(500):
        watched.say(frameCount=n)
        await asyncio.sleep(0.001)
    await watched.hears(frameCount=499)
    assert len(watched.sent) <= 2 + (time.monotonic() - begun) / reports_module.GAP_SECS
    counts = [r.report["frameCount"] for r in watched.sent]
    assert counts == sorted(counts)


async def test_nothing_is_sent_twice_but_after_a_connect(watched: Watched) -> None:
    watched.reports.follow(TOKEN)
    watched.say(frameCount=1)
    await watched.hears(frameCount=1)
    watched.say(frameCount=1)
    (watched.folder / "stdout.log").write_text("other news")
    await asyncio.sleep(3 * reports_module.GAP_SECS)
    assert len(watched.sent) == 1
    watched.reports.resend()
    assert [r.report for r in watched.sent] == [{"frameCount": 1}] * 2


async def test_what_is_over_is_not_followed_any_more(watched: Watched) -> None:
    watched.reports.follow(TOKEN)
    watched.say(frameCount=1)
    await watched.hears(frameCount=1)
    watched.reports.unfollow(TOKEN)
    watched.say(frameCount=2)
    await asyncio.sleep(2 * reports_module.GAP_SECS)
    watched.reports.resend()
    assert len(watched.sent) == 1


async def test_a_plain_command_is_not_followed(watched: Watched) -> None:
    (watched.folder / "input.json").unlink()
    watched.reports.follow(TOKEN)
    watched.say(frameCount=1)
    await asyncio.sleep(0.3)
    assert watched.sent == []


async def test_a_file_that_was_replaced_is_found_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_module, "LOOK_AGAIN_SECS", 0.2)
    watched.reports.follow(TOKEN)
    watched.say(frameCount=1)
    await watched.hears(frameCount=1)
    (watched.folder / "report.jsonl").unlink()
    await asyncio.sleep(0.5)
    watched.say(frameCount=2)
    await watched.hears(frameCount=2)


async def test_a_huge_file_costs_no_more_than_a_small_one(watched: Watched) -> None:
    with (watched.folder / "report.jsonl").open("ab") as f:
        f.truncate(1 << 40)
        f.seek(0, os.SEEK_END)
        f.write(b'\n{"frameCount": 3}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watched.reports.follow(TOKEN)
    await watched.hears(frameCount=3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


# ---- the rules


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b"{",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": 18446744073709551616}',
        b'{"a": -9223372036854775809}',
        b'{"a": {"b": {"c": {"d": {"e": {"f": {}}}}}}}',
        b"[" * 10_000,
        b'{"a": ' * 2000,
        b"\xff",
        b'{"a": "' + b"x" * REPORT_LIMIT + b'"}',
        json.dumps({str(i): i for i in range(65)}).encode(),
    ],
)
def test_what_cannot_be_sent_is_no_report(line: bytes) -> None:
    assert rules.parse(line) is None


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"a": 18446744073709551615, "b": -(2**63), "c": 1.5, "d": None, "e": True, "f": "é😀"},
        {str(i): i for i in range(64)},
        {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
        {"reports": [{"frameCount": 1}] * 60},
    ],
)
def test_what_can_be_sent_is_one(report: dict[str, object]) -> None:
    assert rules.parse(json.dumps(report).encode()) == report


def test_the_newest_whole_report_counts() -> None:
    text = b'{"a": 1}\n{"a": 2}\nnoise\n{"a": 3}'
    assert rules.parse_last(text, from_start=True) == {"a": 2}
    assert rules.parse_last(b'"b": 0}\nnoise\n', from_start=False) is None
    # the start of the line may be missing
    assert rules.parse_last(b'{"b": 0}\n', from_start=False) is None
    assert rules.parse_last(b"", from_start=True) is None


def test_a_whole_page_of_executions_with_the_largest_reports_can_be_sent() -> None:
    exit_ = ExitInfo(code=0, report={f"key{i}": i for i in range(rules.MAX_KEYS)})
    execution = Execution(token=TOKEN, state="ended", op_id="o" * 32, exit=exit_)
    page = Snapshot(number=1, page=0, last=True, executions=(execution,) * SNAPSHOT_PAGE)
    assert list(Encoder().frames([page]))


def test_the_limits_of_job_and_message_are_the_same() -> None:
    assert rules.LIMIT == REPORT_LIMIT


# ---- the agent during a burst of keeper messages


@pytest.mark.process
def test_what_the_keeper_says_together_with_its_hello_is_heard(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ended = {
        "is": "ended",
        "name": TOKEN.name,
        "token": str(TOKEN),
        "state": "ended",
        "pid": 1,
        "startTicks": 1,
        "startedAt": 1.0,
        "elapsed": 1.0,
        "runDir": "/r",
        "exit": {"source": "keeper", "code": 5},
    }
    hello = {
        "is": "hello",
        "folder": str(tmp_path),
        "keeperPid": 1,
        "executions": [{**ended, "state": "running", "exit": None}],
        "agent": {
            "agentKey": "local.parallel.user1234@here",
            "agentId": "a" * 32,
            "token": "secret",
            "addressFile": str(tmp_path / "none"),
            "cacheDir": str(tmp_path),
        },
    }
    ours.sendall(json.dumps(hello).encode() + b"\n" + json.dumps(ended).encode() + b"\n")
    path = str(Path(jobscribe.__file__).parent / ".types")
    with (tmp_path / "stderr").open("w") as errors:
        agent = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "jobscribe.agent",
                "--root",
                str(tmp_path),
                "--keeper-fd",
                str(theirs.fileno()),
            ],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(tmp_path)},
        )
    theirs.close()
    try:
        until(
            lambda: (
                (tmp_path / "agent.log").exists()
                and "state=ended code=5" in (tmp_path / "agent.log").read_text()
            )
        )
    finally:
        ours.close()
        agent.wait(10)
    assert (tmp_path / "stderr").read_text() == ""


async def test_a_job_that_shuts_its_folder_at_once_is_not_followed_and_troubles_nobody(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as m:
        m.setattr(os, "stat", shut)
        watched.reports.follow(TOKEN)
    assert watched.reports._following == {}
