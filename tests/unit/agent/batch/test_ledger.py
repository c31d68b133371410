"""The ledger of batch jobs: what the next agent reads."""

from pathlib import Path

from jobscribe.agent.batch.ledger import BatchLedger
from jobscribe.agent.batch.state import BatchJob, Task
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import Token
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

TOKEN = Token("user1234-sim12345-command", 1, 1, "main", 0)


def test_a_job_id_is_read_with_a_state_that_slurm_has_not_reported_since(tmp_path: Path) -> None:
    log = Log("agent", Redactor(), Direct())
    ledger = BatchLedger(str(tmp_path), log)
    ledger.make()
    ledger.consume(TOKEN, TOKEN.name)
    task = Task(TOKEN, ledger.evidence(TOKEN.name), "/r", None, 1.0, log)
    job = BatchJob([task], "name", "comment", BatchState(cluster="lab"), gang=False)
    ledger.write(job)
    job.job_id = "77"
    ledger.write(job)
    read = BatchLedger(str(tmp_path), log).read(TOKEN.name)
    assert read is not None and (read.job_id, read.state.job_id) == ("77", "77")
