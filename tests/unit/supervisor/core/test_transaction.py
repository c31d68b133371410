"""Recording of events: an illegal change of a status is refused and changes nothing."""

import pytest

from jobscribe.db.events.events import RunEnded
from jobscribe.protocol.jobs.status import PURGED
from jobscribe.protocol.jobs.transitions import IllegalTransition
from jobscribe.supervisor.core.state.transaction import Transaction


def test_an_illegal_change_of_the_status_is_refused_before_the_world_changes(kit) -> None:
    stage = kit.Stage()
    stage.submit(1)
    before, tx = stage.job(), Transaction(stage.world, stage.now())
    event = RunEnded(at=1.0, serial=before.run.serial, status=PURGED, reason="exit")
    with pytest.raises(
        IllegalTransition, match="RunEnded to job_run_purged is illegal in state pending"
    ):
        tx.record(before.jid, event)
    assert stage.job() is before and tx.writes() == () and tx.touched == {}
