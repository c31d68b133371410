"""`jobscribe run --local`: a command or a job file as processes of this machine.

A private supervisor runs them, with the driver `local` alone. What only containers and clusters have
is listed as a warning.
"""

from typing import TYPE_CHECKING, Any

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.session import Session
from .foreground import follow, stopping_signals
from .job_document import FileOptions, JobDocument, read_document

if TYPE_CHECKING:
    from ...client.sync_client import Client, Job

#: Exit code of a run that was refused.
_REFUSED = 125


def run_here(s: Session, words: tuple[str, ...], path: str | None, fields: dict[str, Any]) -> int:
    """Run the command or the job file to its end. Return the exit code of the first run that failed.
    Raises Refusal, ClientError.
    """
    from ...client.sync_client import Client

    document = None if path is None else _document(s, path)
    with stopping_signals():
        client = Client(local=True)
        try:
            s.use_private(client)
            assert client._site is not None
            client._site.warn = lambda sentence: _warn(s, sentence)
            return _follow_all(s, _submit(s, client, words, document, fields))
        finally:
            client.close()


def _document(s: Session, path: str) -> JobDocument:
    document, problems, warnings = read_document(path, FileOptions())
    for problem in warnings:
        _warn(s, problem.sentence("warning").removeprefix("warning: "))
    if document is None or problems:
        for problem in problems if not s.screen.json else ():
            s.screen.message(problem.sentence())
        raise Refusal(
            "badRequest", f"nothing was started: {path} has problems", {"problems": problems}
        )
    return document


def _warn(s: Session, sentence: str) -> None:
    if s.screen.json:
        s.screen.record({"type": "warning", "sentence": sentence})
    else:
        s.screen.message(f"warning: {sentence}")


def _submit(
    s: Session,
    client: "Client",
    words: tuple[str, ...],
    document: JobDocument | None,
    fields: dict[str, Any],
) -> list["Job | ClientError"]:
    if document is None:
        return [client.run(words, **fields)]
    jobs = client.submit_description(document.data, credentials=document.credentials)
    return [run for runs in jobs.values() for run in runs]


def _follow_all(s: Session, jobs: list["Job | ClientError"]) -> int:
    """Follow the runs, one after the other: their output is kept. After an interrupt, cancel the
    others; if the interrupted run had just ended well, report the first of them that did not.
    """
    code = 0
    runs: list[Job] = []
    for job in jobs:
        if isinstance(job, ClientError):
            s.screen.message(job.sentence)
            code = code or _REFUSED
        else:
            runs.append(job)
    for n, job in enumerate(runs):
        canceled = s.interrupted
        if s.screen.json and job.submitted is not None:
            s.screen.record({"type": "submitted", **job.submitted.raw})
        ended = follow(s, job)
        code = code or ended
        if s.interrupted and not canceled:
            for other in runs[n + 1 :]:
                other.cancel("Ctrl-C at jobscribe run")
        if s.interrupted and ended:
            break
    return code
