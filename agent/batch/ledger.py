"""What this agent writes down about executions through the batch scheduler, so that the next one
knows what it did.

<folder>/batch/<token.name>.json     one entry for each execution whose end is not acknowledged: its token, and whose folder has more
<folder>/run/<token.name>/           its evidence (see runtime.evidence); making it consumes the fencing token
    batch.sh                         in the folder of the batch job's first task: exactly what sbatch was given
    batch.json                       there: what was submitted, its job id, what Slurm said of it last
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.errors import Refusal
from ...protocol.ids import Token, parse_token
from ...protocol.jobs.exit_info import ExitInfo
from ...runtime.execution.folder import EXIT, STOP, read_json, write_json, written_code
from ...runtime.filesystems import make_folder
from .state import BatchJob, Task

BATCH = "batch.json"
_SUFFIX = ".json"


class LedgerEntry(NamedTuple):
    token: Token
    lead: str


class BatchLedger:
    """folder: the agent's. What cannot be written now is written later; see `owed`."""

    def __init__(self, folder: str) -> None:
        self._entries, self._runs = f"{folder}/batch", f"{folder}/run"
        #: path: what is still to be written there
        self.owed: dict[str, dict[str, Any]] = {}

    def make(self) -> None:
        for path in (self._entries, self._runs):
            make_folder(path)

    def evidence(self, name: str) -> str:
        return f"{self._runs}/{name}"

    def consume(self, token: Token, lead: str) -> None:
        """From here on this token counts as started. Raises OSError; FileExistsError: somebody used
        it before.
        """
        write_json(f"{self._entries}/{token.name}{_SUFFIX}", {"token": str(token), "lead": lead})
        try:
            os.mkdir(self.evidence(token.name), 0o700)
        except FileExistsError:
            raise
        except OSError:
            self.strike(token.name)
            raise

    def strike(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._entries}/{name}{_SUFFIX}")

    def entries(self) -> Iterator[LedgerEntry]:
        """In order of names. What is none is left alone: it says nothing."""
        for file in sorted(os.listdir(self._entries)):
            said = read_json(f"{self._entries}/{file}") if file.endswith(_SUFFIX) else None
            with contextlib.suppress(Refusal, TypeError, KeyError):
                if said is not None:
                    yield LedgerEntry(parse_token(said["token"]), str(said["lead"]))

    # ---- a batch job

    def note(self, job: BatchJob) -> None:
        """Write down what is known of it. Raises OSError."""
        write_json(
            f"{job.lead.folder}/{BATCH}",
            {
                "tokens": [str(t.token) for t in job.tasks],
                "runDirs": [t.run_dir for t in job.tasks],
                "limits": [t.limit for t in job.tasks],
                "graces": [t.grace for t in job.tasks],
                "gang": job.gang,
                "name": job.name,
                "comment": job.comment,
                "asked": job.asked,
                "askedAt": job.asked_at,
                "firstAskedAt": job.first_asked_at,
                "jobId": job.job_id,
                "state": msgspec.to_builtins(job.state),
                "impossible": job.impossible,
                "recalled": job.recalled,
            },
        )

    def note_when_possible(self, job: BatchJob) -> None:
        """The same for what the next agent would find out anyway."""
        with contextlib.suppress(OSError):
            self.note(job)

    def read(self, lead: str) -> BatchJob | None:
        """The batch job that was noted in this folder, its tasks as their evidence says; None where
        nothing was.
        """
        said = read_json(f"{self.evidence(lead)}/{BATCH}")
        if said is None:
            return None
        try:
            rows = zip(said["tokens"], said["runDirs"], said["limits"], said["graces"], strict=True)
            tasks = [
                self._task(parse_token(token), str(run_dir), limit, float(grace))
                for token, run_dir, limit, grace in rows
            ]
            # its id is noted as soon as Slurm has given it, the state as it was then: before any
            # word of Slurm's
            state = msgspec.convert({**said["state"], "jobId": said["jobId"]}, BatchState)
            job = BatchJob(
                tasks, str(said["name"]), str(said["comment"]), state, gang=bool(said["gang"])
            )
            job.asked, job.asked_at, job.job_id = (
                int(said["asked"]),
                float(said["askedAt"]),
                said["jobId"],
            )
            job.first_asked_at, job.impossible = (
                float(said["firstAskedAt"]),
                str(said["impossible"]),
            )
            job.recalled = said.get("recalled") is True
        except (KeyError, TypeError, ValueError, Refusal, msgspec.ValidationError):
            return None
        job.unsure = job.job_id is None
        return job if tasks else None

    def _task(self, token: Token, run_dir: str, limit: float | None, grace: float) -> Task:
        task = Task(token, self.evidence(token.name), run_dir, limit, grace)
        task.exit = self.exit(token.name)
        stop = read_json(f"{task.folder}/{STOP}")
        if stop is not None:
            # older versions did not say whether they had sent a signal
            task.signaled = stop.get("signaled") is not False
        if stop is not None and (task.signaled or written_code(task.folder) is None):
            task.stop_reason = str(stop.get("reason"))
            given = stop.get("grace")
            task.grace = float(given) if isinstance(given, int | float) else grace
        return task

    # ---- ends

    def exit(self, name: str) -> ExitInfo | None:
        """The end that was written down; None where none was."""
        said = read_json(f"{self.evidence(name)}/{EXIT}")
        try:
            return None if said is None else msgspec.convert(said, ExitInfo)
        except msgspec.ValidationError:
            return ExitInfo(
                source="lost", detail="what was written down about its end cannot be read"
            )

    def close(self, folder: str, exit_: ExitInfo) -> None:
        """Write down its end, now or as soon as that is possible."""
        said: dict[str, Any] = msgspec.to_builtins(exit_)
        self.owe(f"{folder}/{EXIT}", said)

    def owe(self, path: str, said: Mapping[str, Any]) -> None:
        self.owed[path] = dict(said)
        self.pay()

    def pay(self) -> None:
        for path, said in list(self.owed.items()):
            try:
                write_json(path, said)
            except FileNotFoundError:  # its folder was taken away: nobody will look there
                pass
            except OSError:
                continue
            del self.owed[path]
