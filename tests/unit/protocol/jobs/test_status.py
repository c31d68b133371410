"""Status of a run: every pair of statuses, and its text in JSON and msgpack."""

import itertools
import json

import msgspec
import pytest

from jobscribe.protocol.jobs.status import ACTIVE, LEGAL_CHANGES, Status, check_change
from jobscribe.protocol.jobs.transitions import IllegalTransition

FINAL = {Status.COMPLETED, Status.CANCELED, Status.ERROR}


def is_legal(before: Status, after: Status) -> bool:
    """Return whether one event can change the status like this, by the life of a run."""
    if after == Status.PENDING:  # submitted, submitted again, or a retry
        return True
    if after == Status.RUNNING or after in FINAL:
        return before in ACTIVE
    return after == Status.PURGED and before in FINAL


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_each_pair_is_a_legal_change_or_is_refused(before: Status, after: Status) -> None:
    if before == after or is_legal(before, after):
        check_change(before, after, "AnEvent")
    else:
        with pytest.raises(IllegalTransition, match=f"AnEvent to {after} is illegal in state"):
            check_change(before, after, "AnEvent")


def test_no_status_is_a_dead_end_or_out_of_reach() -> None:
    assert set(LEGAL_CHANGES) == set(Status) and all(LEGAL_CHANGES.values())
    assert set().union(*LEGAL_CHANGES.values()) == set(Status) - {Status.MISSING}


@pytest.mark.parametrize("status", list(Status))
def test_a_status_is_written_as_its_text(status: Status) -> None:
    text = f'"{status.value}"'
    assert json.dumps(status) == text and msgspec.json.encode(status).decode() == text
    assert type(msgspec.to_builtins({"status": status})["status"]) is str
    assert f"{status}" == status.value and msgspec.convert(status.value, Status) is status
