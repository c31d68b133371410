"""`jobscribe job submit`: a command, an array, a file of commands, or a job file (see
`submission.job_files`).
"""

import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.last_refusal import record_refusal
from ..session.session import Session, command, session
from ..submission.quota_warning import warn_of_quota
from ..submission.run_options import run_options, spec_options

if TYPE_CHECKING:
    from ...client.sync_client import Job
    from ...protocol.api.requests import RunSpec

#: Maximum number of lines and of bytes in one request. The reply comes when all its runs are
#: durable.
BATCH_LINES = 1000
BATCH_BYTES = 1024 * 1024


@command(context_settings={"allow_interspersed_args": False})
@run_options
@click.option("-q", "quiet", is_flag=True, help="Print the computeJid only.")
@click.option(
    "--from",
    "source",
    type=click.File("rb"),
    metavar="FILE",
    help="File with one command per line, each for /bin/sh -c; - for standard input.",
)
@click.option(
    "--array",
    "indices",
    metavar="0-99%10",
    help="One run per index, here at most ten at once; runs get ARRAY_INDEX in their environment.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="With --array: submit to this group; unchanged runs that completed there do not run again.",
)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    help="Job file (YAML or JSON); - for standard input.",
)
@click.option(
    "--dry-run",
    "dry",
    is_flag=True,
    help="With -f: show every task with command and environment, and submit nothing.",
)
@click.option(
    "--no-image",
    "no_image",
    is_flag=True,
    help="With -f and a configuration of OpenPAI: run its commands without its images.",
)
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
def submit(
    words: tuple[str, ...],
    source: IO[bytes] | None,
    quiet: bool,
    indices: str | None,
    group: str | None,
    path: str | None,
    dry: bool,
    no_image: bool,
    **options: Any,
) -> None:
    """Submit a command, print its computeJid, and return as soon as the run is stored.

    The command runs in a new run directory, with your login environment plus --env, without
    standard input. --from skips empty lines and lines that begin with #. With -f the file contains
    all options (see `job lint`); for a configuration of OpenPAI, give --driver or --no-image here.
    """
    if bool(words) + (source is not None) + (path is not None) != 1:
        raise click.UsageError("give either a COMMAND, --from FILE or -f FILE")
    if dry and path is None:
        raise click.UsageError("--dry-run requires -f FILE")
    if no_image and path is None:
        raise click.UsageError("--no-image requires -f FILE")
    if indices is not None and not words:
        raise click.UsageError("--array requires a COMMAND; a job file describes its arrays itself")
    if group is not None and indices is None:
        raise click.UsageError("--group requires --array")
    fields = spec_options(**options)
    s = session()
    if path is not None and dry:
        _submit_job_file(s, path, fields, quiet, dry, no_image)
        return
    with record_refusal(s):
        if path is not None:
            _submit_job_file(s, path, fields, quiet, dry, no_image)
        elif indices is not None:
            from .group import submit_array

            submit_array(s, words, indices, group, fields, quiet)
        elif source is None:
            _submit_one(s, words, fields, quiet)
        else:
            _submit_many(s, source, fields, quiet)


def _submit_job_file(
    s: Session, path: str, fields: dict[str, Any], quiet: bool, dry: bool, no_image: bool
) -> None:
    driver = fields.pop("driver", None)
    if any(value is not None for value in fields.values()):
        raise click.UsageError(
            "run options cannot be combined with -f: put time limits, variables and so on into the file"
        )
    from ..submission.job_document import FileOptions
    from ..submission.job_files import dry_run, submit_file

    options = FileOptions(containers=not no_image, driver=driver or "")
    (dry_run if dry else submit_file)(s, path, quiet, options)


def _submit_one(s: Session, words: tuple[str, ...], fields: dict[str, Any], quiet: bool) -> None:
    job = s.client().run(words, **fields)
    assert job.submitted is not None
    if s.screen.json:
        s.screen.value("jobscribe.job.submit/1", job.submitted.raw)
        return
    s.screen.line(job.jid)
    warn_of_quota(s, job.submitted.raw)
    if not quiet:
        here = s.supervisor_options()
        s.screen.message(f"submitted ({job.submitted.sentence()})")
        for verb, about in (
            ("logs -f", "follow its output"),
            ("wait", "wait for its end"),
            ("why", "explain its state"),
        ):
            s.screen.message(f"  jobscribe job {verb} {job.jid}{here}   # {about}")


def _submit_many(s: Session, source: IO[bytes], fields: dict[str, Any], quiet: bool) -> None:
    """Submit the commands of a file in batches. Print accepted runs, report refused lines, and exit
    with 125 if there are any.
    """
    items: list[dict[str, Any]] = []
    counts = {True: 0, False: 0}
    begun = time.monotonic()
    try:
        for batch in _batches(_specs(s, source, fields)):
            answers = s.client().run_many([spec for _, spec in batch])
            for (number, _), answer in zip(batch, answers, strict=True):
                accepted, item = _report(s, number, answer)
                counts[accepted] += 1
                if s.screen.json:
                    items.append(item)
            s.screen.progress(f"{counts[True]} submitted", time.monotonic() - begun)
    except (Refusal, ClientError):
        s.screen.message(
            f"{counts[True]} runs were submitted before the error"
            if counts[True]
            else "nothing was submitted"
        )
        if s.screen.json:
            s.screen.value("jobscribe.job.submit-many/1", {"items": items})
        raise
    if s.screen.json:
        s.screen.value("jobscribe.job.submit-many/1", {"items": items})
    elif not quiet:
        s.screen.message(
            f"{counts[True]} submitted" + (f", {counts[False]} refused" if counts[False] else "")
        )
    if counts[False]:
        raise SystemExit(125)


def _report(s: Session, number: int, answer: "Job | ClientError") -> tuple[bool, dict[str, Any]]:
    """Print the result for one line. Return whether its run was accepted, and its JSON item."""
    if isinstance(answer, ClientError):
        s.screen.message(f"line {number}: {answer.sentence}")
        return False, {"line": number, **answer.body()}
    if not s.screen.json:
        s.screen.line(answer.jid)
    assert answer.submitted is not None
    if not s.screen.json:
        warn_of_quota(s, answer.submitted.raw)
    return True, {"line": number, **answer.submitted.raw}


def _specs(
    s: Session, source: IO[bytes], fields: dict[str, Any]
) -> "Iterator[tuple[int, RunSpec]]":
    """Yield (line number, spec) for each command. Raises Refusal for an invalid line."""
    for number, raw in enumerate(source, 1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Refusal("badRequest", f"line {number} is not UTF-8") from None
        if not line or line.startswith("#"):
            continue
        try:
            yield number, s.client().spec(["/bin/sh", "-c", line], **fields)
        except ClientError as e:
            raise Refusal("badRequest", f"line {number}: {e.sentence}") from None


def _batches(specs: "Iterator[tuple[int, RunSpec]]") -> "Iterator[list[tuple[int, RunSpec]]]":
    batch: list[tuple[int, RunSpec]] = []
    size = 0
    for number, spec in specs:
        length = sum(
            len(word)
            for command in (spec.command, *(r.command for r in spec.roles))
            for word in command
        )
        if batch and size + length > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((number, spec))
        size += length
        if len(batch) == BATCH_LINES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
