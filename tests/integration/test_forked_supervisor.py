"""A supervisor that the tests' fork server starts is the same to the kernel as an executed one."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_fork_server import ForkedProcess, can_fork
from supervisor_process import SupervisorProcess, ended, shell, until

FIELDS = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs")


class Executed(SupervisorProcess):
    def _fork_or_launch(self):  # type: ignore[no-untyped-def]
        return self.launch()


@pytest.fixture
def pair() -> Iterator[tuple[SupervisorProcess, SupervisorProcess]]:
    with ended() as sites:
        for kind in (SupervisorProcess, Executed):
            sites.append(kind().start())
        yield sites[0], sites[1]


def facts(site: SupervisorProcess) -> dict[str, object]:
    """Return what the kernel knows of the supervisor, without what each process has of its own."""
    proc = Path(f"/proc/{site.pid}")
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    targets = [os.readlink(proc / "fd" / name) for name in os.listdir(proc / "fd")]
    return {
        **{name: status[name].split() for name in FIELDS},
        "title": (proc / "cmdline").read_bytes().rstrip(b"\0").replace(bytes(site.place), b"P"),
        "name": (proc / "comm").read_text(),
        "cwd": os.readlink(proc / "cwd"),
        "program": os.readlink(proc / "exe"),
        "limits": (proc / "limits").read_text(),
        "score": (proc / "oom_score_adj").read_text(),
        "nice": (proc / "stat").read_text().rpartition(")")[2].split()[16],
        "group": (os.getpgid(site.pid), os.getsid(site.pid)),
        "open": sorted(
            re.sub(r"/sessions/[^/]+|\d+", "N", t.replace(str(site.place), "P")) for t in targets
        ),
    }


def test_forked_and_executed_supervisors_are_alike(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    forked, executed = pair
    assert isinstance(forked.process, ForkedProcess) and not isinstance(
        executed.process, ForkedProcess
    )
    # a supervisor opens its log file when it first writes to it
    until(lambda: facts(forked)["open"] == facts(executed)["open"], "they have the same files open")
    assert facts(forked) == facts(executed)


def test_their_jobs_have_the_same_environment(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    said = []
    for site in pair:
        run = {**shell("env | cut -d= -f1 | sort"), "simulationId": "s0000001"}
        site.finished(run)
        said.append(site.output(run).body)
    assert said[0] == said[1] and b"PATH" in said[0]


def test_both_end_by_a_signal_and_say_so(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    forked, executed = pair
    assert forked.process is not None and forked.process.poll() is None
    assert forked.stop() == executed.stop() == 0
    forked.start()
    assert forked.stop(9) == -9


@pytest.mark.parametrize(
    "variable", ["LD_PRELOAD", "PYTHONPATH", "JOBSCRIBE_CRASHPOINT", "MALLOC_ARENA_MAX"]
)
def test_a_variable_that_works_at_the_start_needs_a_start(variable: str) -> None:
    assert can_fork(sys.executable, {"OTHER": "x"})
    assert not can_fork("/another/python", {}) and not can_fork(sys.executable, {variable: "x"})
