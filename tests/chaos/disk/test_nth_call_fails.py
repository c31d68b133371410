"""One system call of the store fails: the n-th write, truncate, open or sync, for every n.

A failure that may pass leads to a refusal with a code and recovers by itself. A failed sync ends
the supervisor at once, with its reason. No acknowledged data is lost, and running jobs are not
affected.
"""

import contextlib
import http.client
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import strace_calls
from consistency_check import check_books
from failing_calls import Fault, after_the_first, struck
from running_jobs import LongJob, ask, refused
from supervisor_process import SupervisorProcess, jid_of, req_id, shell, until

SOAK = os.environ.get("SOAK") == "1"
#: Step between the tested values of n, starting at 1; with SOAK=1 every n.
EVERY = 1 if SOAK else 9
#: Seconds until a refused request is accepted again: a pause of 1 s and a check every 0.5 s, times
#: 5.
RECOVERY_SECS = 5 * 1.5
Make = Callable[..., SupervisorProcess]

#: Recoverable failures: calls, the error, and the affected files.
PASSING = [
    ("pwrite64,ftruncate,fallocate", "ENOSPC"),
    ("pwrite64,ftruncate,fallocate", "EDQUOT"),
    ("pwrite64,ftruncate", "EROFS"),
    ("pwrite64", "ENOMEM"),
    ("pwrite64", "EIO"),
]


@pytest.fixture(autouse=True)
def _traceable() -> None:
    strace_calls.required()


def store_files(site: SupervisorProcess) -> list[Path]:
    return [
        site.root / "db" / name
        for name in ("events.sqlite", "events.sqlite-wal", "events.sqlite-shm")
    ]


def accepted(site: SupervisorProcess, run: dict[str, Any], request: str) -> dict[str, Any]:
    """Repeat the request until it is accepted, within the recovery time."""

    def look() -> dict[str, Any] | None:
        answer = ask(site, run, request)
        if answer.code == 200:
            return answer.json()  # type: ignore[no-any-return]
        refused(answer, "storageUnavailable", "conflict")
        return None

    said: dict[str, Any] = until(look, "the request is accepted", RECOVERY_SECS)
    return said


@pytest.mark.timeout(3600 if SOAK else 120)
def test_a_write_that_fails_is_refused_by_name_and_the_store_recovers_by_itself(
    make_site: Make,
) -> None:
    site = make_site("slots.local_sequential=3").start()
    long = LongJob(site)
    acknowledged: dict[str, int] = {}
    hit = refusals = 0
    for n, kinds in _cases(PASSING):
        reached = False
        for calls, error in kinds:
            lines, refusal = _one_fails(site, calls, error, n, acknowledged)
            reached, hit, refusals = reached or bool(lines), hit + bool(lines), refusals + refusal
            long.check()
        if not reached:
            break
    assert n > 30 and hit and refusals, (n, hit, refusals)
    print(
        f"a run needs less than {n} writes; {hit} failed, {refusals} requests refused, {len(acknowledged)} runs acknowledged"
    )
    _restarted_whole(site, long, acknowledged)


def _cases(kinds: list[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield n and the kinds that fail at n; an ordinary run alternates the kinds."""
    turns = itertools.cycle(kinds)
    for n in itertools.count(1, EVERY):
        yield n, (kinds if SOAK else [next(turns)])


def _one_fails(
    site: SupervisorProcess, calls: str, error: str, n: int, acknowledged: dict[str, int]
) -> tuple[list[str], bool]:
    """Let the n-th of these calls fail while a run is submitted and runs. Return the failed calls
    and whether the request was refused.
    """
    run, request = shell("exit 0"), req_id()
    fault = Fault(
        site.pid, calls, f"error={error}", str(n), store_files(site), site.place / "struck"
    )
    try:
        answer = ask(site, run, request)
        if answer.code == 200:
            acknowledged[jid_of(run)] = answer.json()["computeJobSerial"]
            site.wait(run)
        else:
            refused(answer, "storageUnavailable")
    finally:
        lines = fault.end()
    said = accepted(site, run, request)
    assert said["computeJobSerial"] == acknowledged.setdefault(
        jid_of(run), said["computeJobSerial"]
    )
    assert site.wait(run)["state"] == "completed"
    return lines, answer.code != 200


def _gone(site: SupervisorProcess) -> bool:
    return site.process is None or site.process.poll() is not None


def _restarted_whole(site: SupervisorProcess, long: LongJob, acknowledged: dict[str, int]) -> None:
    assert site.stop() == 0
    site.start()
    until(lambda: site.status(long.run)["known"], "the job is known again")
    long.check()
    long.let_go()
    books = check_books(site)
    for jid, serial in acknowledged.items():
        run = books[jid].run
        assert run is not None and (run.serial, run.status) == (serial, "completed")


#: Failures that must not be retried: calls, the error, the files, and the number of such calls per
#: run.
FATAL = [
    pytest.param("fdatasync,fsync", "EIO", ("events.sqlite", "events.sqlite-wal"), 3, id="sync"),
    pytest.param("pwrite64", "EIO", ("head",), 3, id="witness"),
    # synced after the answer: the next commit is refused
    pytest.param("fdatasync", "EIO", ("head",), 1, id="witness_sync"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("calls", "error", "names", "most"), FATAL)
def test_a_sync_that_fails_is_the_end_of_the_supervisor_and_is_not_tried_again(
    make_site: Make,
    calls: str,
    error: str,
    names: tuple[str, ...],
    most: int,
) -> None:
    site = make_site("slots.local_sequential=3").start()
    long = LongJob(site)
    acknowledged: dict[str, int] = {}
    for n in range(1, most + 1) if SOAK else (1,):
        (site.place / "up.log").write_text("")
        files, seen = [site.root / "db" / name for name in names], site.place / "struck"
        fault = Fault(
            site.pid,
            calls,
            f"error={error}",
            str(n),
            files,
            seen,
            also="pwrite64,ftruncate,fdatasync,fsync",
        )
        run = shell("exit 0")
        answer = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = ask(site, run, req_id())
        if answer is not None and answer.code == 200:
            acknowledged[jid_of(run)] = answer.json()["computeJobSerial"]
        elif answer is not None:
            refused(answer, "storageUnavailable")
        until(lambda: _gone(site), "the supervisor has ended")
        fault.end()
        assert site.stop() > 0
        assert len(struck(seen)) == 1 and not after_the_first(seen), (
            "after a failed sync nothing may be written or synced"
        )
        said = site.log()
        assert (
            "cannot be written" in said
            and "nothing is written until you restart the supervisor" in said
        ), said[-2000:]
        assert "Traceback" not in said, said[-3000:]
        assert "the event store failed permanently" in site.logged()
        assert (answer is None or answer.code != 200) or n > 1 or calls == "fdatasync"
        beats = long.beats()
        until(lambda beats=beats: long.beats() > beats, "the job goes on without a supervisor")
        site.start()
        until(lambda: site.status(long.run)["known"], "the job is known again")
        site.wait(run) if jid_of(run) in acknowledged else None
    _restarted_whole(site, long, acknowledged)
