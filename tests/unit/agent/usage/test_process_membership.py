"""Membership of processes that end while they are read."""

import pytest

from jobscribe.agent.usage import proc_counters, process_membership
from jobscribe.agent.usage.proc_counters import Process
from jobscribe.agent.usage.process_membership import Execution, ProcessMembership

KEEPER, SHELL, CHILD = 100, 200, 300


def shell(waited: float) -> Process:
    return Process(SHELL, 7, KEEPER, SHELL, 1, False, 0.1 + waited, waited)


def test_a_child_that_is_reaped_during_a_sample_is_counted_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shell is read, then it reaps its child, then the child is not there."""
    reads = {SHELL: [shell(0.0), shell(0.6)], CHILD: [None], KEEPER: [None]}
    monkeypatch.setattr(proc_counters, "process", lambda pid: reads[pid].pop(0))
    monkeypatch.setattr(proc_counters, "children", lambda p: [])
    monkeypatch.setattr(process_membership, "cgroup_of_process", lambda pid, name: None)
    e = Execution("name", "token", "/evidence", SHELL, 7)
    e.seen = {SHELL: shell(0.0), CHILD: Process(CHILD, 8, SHELL, SHELL, 1, False, 0.6, 0.0)}
    ProcessMembership(KEEPER).update([e])
    assert e.seen == {SHELL: shell(0.6)}


def test_a_child_that_is_reaped_after_it_was_read_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A known child ended before the sample; the next child ends as soon as it has been read."""
    second = 400
    reads = {
        SHELL: [shell(0.6), shell(0.9)],
        CHILD: [None],
        second: [Process(second, 9, SHELL, SHELL, 1, False, 0.3, 0.0), None],
        KEEPER: [None],
    }
    monkeypatch.setattr(
        proc_counters, "process", lambda pid: reads[pid].pop(0) if reads[pid][1:] else reads[pid][0]
    )
    monkeypatch.setattr(proc_counters, "children", lambda p: [second] if p.pid == SHELL else [])
    monkeypatch.setattr(process_membership, "cgroup_of_process", lambda pid, name: None)
    e = Execution("name", "token", "/evidence", SHELL, 7)
    e.seen = {SHELL: shell(0.0), CHILD: Process(CHILD, 8, SHELL, SHELL, 1, False, 0.6, 0.0)}
    ProcessMembership(KEEPER).update([e])
    assert e.seen == {SHELL: shell(0.9)}
