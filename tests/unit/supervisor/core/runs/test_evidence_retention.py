"""Which files of an execution retention may remove: the whole table of facts and ages."""

import itertools

import pytest

from jobscribe.protocol.ids import Token
from jobscribe.supervisor.core.runs.evidence_retention import (
    EvidenceRules,
    JobFacts,
    Verdict,
    profiles_expired,
    token_of,
    too_young,
    verdict,
)

JID = "EvidUse1-simAAA01-model"
TOKEN = Token(JID, 1000, 1, "main", 0)
#: Wall times: outputs go before 2000, scripts before 3000, superseded evidence before 2500.
RULES = EvidenceRules(scripts=3000.0, outputs=2000.0, superseded=2500.0)
NEVER = EvidenceRules(None, None, None)
KEEP, REDUCE, REMOVE = Verdict.KEEP, Verdict.REDUCE, Verdict.REMOVE


def facts(serial: int = 1000, ended_at: float | None = 1500.0, **fields) -> JobFacts:
    fields = {"status": "completed", "busy": False} | fields
    return JobFacts(serial=serial, ended_at=ended_at, **fields)


@pytest.mark.parametrize(
    ("job", "changed_at", "expected"),
    [
        (facts(ended_at=1999.0), 0.0, REMOVE),
        (facts(ended_at=2000.0), 0.0, REDUCE),
        (facts(ended_at=2999.0), 0.0, REDUCE),
        (facts(ended_at=3000.0), 0.0, KEEP),
        (facts(ended_at=1999.0, status="error"), 9e9, REMOVE),
        (facts(ended_at=9e9, status="job_run_purged"), 9e9, REMOVE),
        # superseded: only the last change of the folder counts
        (facts(1001, 9e9), 2499.0, REMOVE),
        (facts(1001, 9e9), 2500.0, REDUCE),
        (facts(1001, 9e9), 3000.0, KEEP),
        (facts(1001, 1.0, status="job_run_purged"), 3000.0, KEEP),
        # nothing is known, or it is not over
        (None, 0.0, KEEP),
        (facts(999), 0.0, KEEP),
        (facts(ended_at=None), 0.0, KEEP),
        (facts(busy=True), 0.0, KEEP),
        (facts(1001, busy=True), 0.0, KEEP),
        (facts(kept=True), 0.0, KEEP),
    ],
)
def test_ages(job: JobFacts | None, changed_at: float, expected: Verdict) -> None:
    assert verdict(TOKEN, job, RULES, acknowledged=True, changed_at=changed_at) is expected


def test_nothing_goes_that_lives_or_that_nobody_has_acknowledged() -> None:
    for serial, status, busy, ended_at, kept, rules in itertools.product(
        (999, 1000, 1001),
        ("pending", "running", "completed", "error", "canceled", "job_run_purged"),
        (False, True),
        (None, 1.0),
        (False, True),
        (RULES, NEVER),
    ):
        job = JobFacts(serial, status, busy, ended_at, kept)
        assert verdict(TOKEN, job, rules, acknowledged=False, changed_at=0.0) is KEEP
        if busy or kept or serial < TOKEN.serial:
            assert verdict(TOKEN, job, rules, acknowledged=True, changed_at=0.0) is KEEP
        if rules is NEVER and status != "job_run_purged":
            assert verdict(TOKEN, job, rules, acknowledged=True, changed_at=0.0) is KEEP


def test_a_look_up_is_saved_only_where_nothing_could_go() -> None:
    assert too_young(Token(JID, 3001, 1, "main", 0), RULES) and not too_young(TOKEN, RULES)
    assert too_young(TOKEN, NEVER)


def test_names_of_folders_are_tokens_or_nothing() -> None:
    for token in (TOKEN, Token(JID, 2**40, 17, "worker_2", 12)):
        assert token_of(token.name) == token
    for name in (".used", ".going-x", "EvidUse1-simAAA01-model-1-1-main", "a-b-c-01-1-main-0", ""):
        assert token_of(name) is None


def test_profiles_go_by_the_end_of_their_run() -> None:
    rules = EvidenceRules(None, None, None, profiles=2000.0)
    for job, changed_at, expected in (
        (facts(ended_at=1999.0), 9e9, True),
        (facts(ended_at=2000.0), 0.0, False),
        (facts(ended_at=None), 0.0, False),
        (facts(ended_at=1.0, busy=True), 0.0, False),
        (facts(ended_at=1.0, kept=True), 0.0, False),
        (facts(ended_at=9e9, status="job_run_purged"), 9e9, True),
        (facts(1001, 9e9, status="job_run_purged"), 9e9, False),
        (facts(1001, 9e9), 1999.0, True),
        (facts(1001, 9e9), 2000.0, False),
        (facts(999, 1.0), 1.0, False),
        (None, 0.0, False),
    ):
        assert profiles_expired(TOKEN, job, rules, changed_at=changed_at) is expected, job
        assert not profiles_expired(TOKEN, job, NEVER, changed_at=changed_at)
    assert not too_young(TOKEN, rules) and too_young(TOKEN, NEVER)
