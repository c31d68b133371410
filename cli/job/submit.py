"""`job submit`: one command, or one a line from a file, sent in bulk. (What a job file describes is
`describe`'s.)
"""

import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.last_refusal import noting
from ..session.session import Session, command, session
from ..submission.run_options import run_options, spec_options

if TYPE_CHECKING:
    from ...client.sync_client import Job
    from ...protocol.api.requests import RunSpec

#: Lines in one request, and how long they may be together: an answer comes when all of a request
#: are durable.
SLICE = 1000
SLICE_BYTES = 1024 * 1024


@command(context_settings={"allow_interspersed_args": False})
@run_options
@click.option("-q", "quiet", is_flag=True, help="Print the computeJid and nothing else.")
@click.option(
    "--from",
    "source",
    type=click.File("rb"),
    metavar="FILE",
    help="One command a line, each for /bin/sh -c; - for standard input.",
)
@click.option(
    "--array",
    "indices",
    metavar="0-99%10",
    help="One run for each index, ten at once; see ARRAY_INDEX in their environment.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="With --array: in this group; what completed there, and is unchanged, is not run again.",
)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    help="The jobs that this file describes (YAML or JSON); - for standard input.",
)
@click.option(
    "--dry-run",
    "dry",
    is_flag=True,
    help="With -f: show every task, its command and environment, and submit nothing.",
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
    **options: Any,
) -> None:
    """Submit a command and return as soon as it is on file; prints its computeJid.

    It runs in a run directory of its own, in your login environment plus --env, without standard
    input. With --from empty lines and lines that begin with # are skipped. With -f all is said by
    the file (see `job lint`).
    """
    if bool(words) + (source is not None) + (path is not None) != 1:
        raise click.UsageError("give either a COMMAND, --from FILE or -f FILE")
    if dry and path is None:
        raise click.UsageError("--dry-run goes with -f FILE")
    if indices is not None and not words:
        raise click.UsageError("--array takes a COMMAND, and no file: a job file says it itself")
    if group is not None and indices is None:
        raise click.UsageError("--group goes with --array")
    fields = spec_options(**options)
    s = session()
    if path is not None and dry:
        _described(s, path, fields, quiet, dry)
        return
    with noting(s):
        if path is not None:
            _described(s, path, fields, quiet, dry)
        elif indices is not None:
            from .group import submit_array

            submit_array(s, words, indices, group, fields, quiet)
        elif source is None:
            _one(s, words, fields, quiet)
        else:
            _many(s, source, fields, quiet)


def _described(s: Session, path: str, fields: dict[str, Any], quiet: bool, dry: bool) -> None:
    if any(value is not None for value in fields.values()):
        raise click.UsageError(
            "with -f the file says everything: time limits, variables and the like belong into it"
        )
    from ..submission.job_files import dry_run, submit_file

    (dry_run if dry else submit_file)(s, path, quiet)


def _one(s: Session, words: tuple[str, ...], fields: dict[str, Any], quiet: bool) -> None:
    job = s.client().run(words, **fields)
    assert job.submitted is not None
    if s.screen.json:
        s.screen.value("jobscribe.job.submit/1", job.submitted.raw)
        return
    s.screen.line(job.jid)
    if not quiet:
        here = s.here()
        s.screen.say(f"submitted ({job.submitted.sentence()})")
        for verb, about in (
            ("logs -f", "follow its output"),
            ("wait", "wait for its end"),
            ("why", "why it is as it is"),
        ):
            s.screen.say(f"  jobscribe job {verb} {job.jid}{here}   # {about}")


def _many(s: Session, source: IO[bytes], fields: dict[str, Any], quiet: bool) -> None:
    """Request by request. Whatever was taken is printed; whatever was not is said with its line,
    and makes the exit code 125.
    """
    items: list[dict[str, Any]] = []
    counts = {True: 0, False: 0}
    begun = time.monotonic()
    try:
        for slice_ in _slices(_specs(s, source, fields)):
            answers = s.client().run_many([spec for _, spec in slice_])
            for (number, _), answer in zip(slice_, answers, strict=True):
                taken, item = _told(s, number, answer)
                counts[taken] += 1
                if s.screen.json:
                    items.append(item)
            s.screen.progress(f"{counts[True]} submitted", time.monotonic() - begun)
    except (Refusal, ClientError):
        s.screen.say(
            f"{counts[True]} runs were submitted before this"
            if counts[True]
            else "nothing was submitted"
        )
        if s.screen.json:
            s.screen.value("jobscribe.job.submit-many/1", {"items": items})
        raise
    if s.screen.json:
        s.screen.value("jobscribe.job.submit-many/1", {"items": items})
    elif not quiet:
        s.screen.say(
            f"{counts[True]} submitted" + (f", {counts[False]} refused" if counts[False] else "")
        )
    if counts[False]:
        raise SystemExit(125)


def _told(s: Session, number: int, answer: "Job | ClientError") -> tuple[bool, dict[str, Any]]:
    """Was the run of this line taken? And the item that says so in JSON."""
    if isinstance(answer, ClientError):
        s.screen.say(f"line {number}: {answer.sentence}")
        return False, {"line": number, **answer.body()}
    if not s.screen.json:
        s.screen.line(answer.jid)
    assert answer.submitted is not None
    return True, {"line": number, **answer.submitted.raw}


def _specs(
    s: Session, source: IO[bytes], fields: dict[str, Any]
) -> "Iterator[tuple[int, RunSpec]]":
    """(line number, spec) of each command in the file. Raises Refusal for a line that cannot be
    one.
    """
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


def _slices(specs: "Iterator[tuple[int, RunSpec]]") -> "Iterator[list[tuple[int, RunSpec]]]":
    slice_: list[tuple[int, RunSpec]] = []
    size = 0
    for number, spec in specs:
        length = sum(
            len(word)
            for command in (spec.command, *(r.command for r in spec.roles))
            for word in command
        )
        if slice_ and size + length > SLICE_BYTES:
            yield slice_
            slice_, size = [], 0
        slice_.append((number, spec))
        size += length
        if len(slice_) == SLICE:
            yield slice_
            slice_, size = [], 0
    if slice_:
        yield slice_
