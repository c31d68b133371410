"""`bundle`: all that is known of one job in one archive, for somebody else to look at, without
secrets.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import BYTES

if TYPE_CHECKING:
    from .parts import Collected

_OUTPUT_BYTES, _MOST_OUTPUT = 256 * 1024, 512 * 1024
_MAX_SIZE = 64 * 2**20


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The archive (default: jobscribe-JOB.tar.gz here).",
)
@click.option("--list", "only_list", is_flag=True, help="Only show what would be in it.")
@click.option("-y", "--yes", is_flag=True, help="Write it without asking.")
@click.option("--no-output", is_flag=True, help="Leave out what the job itself wrote.")
@click.option(
    "--output-bytes",
    type=BYTES,
    default=_OUTPUT_BYTES,
    metavar="SIZE",
    help="Of each stream its end only (default: 256K, at most 512K).",
)
@click.option(
    "--max-size",
    type=BYTES,
    default=_MAX_SIZE,
    metavar="SIZE",
    help="All parts together, before they are packed (default: 64M).",
)
@click.option("--no-doctor", is_flag=True, help="Leave out what `jobscribe doctor` finds.")
def bundle(
    name: str,
    path: str | None,
    only_list: bool,
    yes: bool,
    no_output: bool,
    output_bytes: int,
    max_size: int,
    no_doctor: bool,
) -> None:
    """Put status, cause, events, trace, logs, scripts, exits, metrics and output of JOB into one
    archive, after showing what is in it.

    Known secrets are replaced wherever they stand, others by their names. What the job wrote is in
    it, too (--no-output leaves it out). Works from any machine; scripts and exit files are added
    where the root can be read. The file is for you alone (0600).
    """
    from ...protocol.version import VERSION
    from .archive import manifest

    s = session()
    jid = resolve_job(s, name)
    collected = _collected(s, jid, 0 if no_output else min(output_bytes, _MOST_OUTPUT), no_doctor)
    collected.within(max_size)
    made = manifest(jid, VERSION, collected, time.time())
    path = path or f"jobscribe-{jid}.tar.gz"
    if not s.screen.json:
        _show(s, made, no_output)
    if only_list:
        if s.screen.json:
            s.screen.value(
                "jobscribe.bundle/1",
                {k: v for k, v in made.items() if k != "schema"} | {"file": None},
            )
        return
    if not yes and not _agreed(path):
        s.screen.message("nothing is written")
        raise SystemExit(1)
    size = _written(path, jid, collected, made)
    if s.screen.json:
        s.screen.value(
            "jobscribe.bundle/1",
            {k: v for k, v in made.items() if k != "schema"}
            | {"file": os.path.abspath(path), "size": size},
        )
    else:
        s.screen.message(
            f"written: {path}, {size} bytes; look through it before you give it to somebody"
        )


def _collected(s: Session, jid: str, output_bytes: int, no_doctor: bool) -> "Collected":
    from ...protocol.version import VERSION
    from . import local_files, supervisor_parts
    from .parts import Collected
    from .secret_masking import Masker

    begun = time.monotonic()
    out = Collected(lambda what: s.screen.progress(f"collecting: {what}", time.monotonic() - begun))
    client = s.client_for(jid)
    out.add_json(
        "versions.json",
        {"jobscribe": VERSION, "python": sys.version, "kernel": list(os.uname())},
        "of this command line and machine",
    )
    # asked first: where there is no such job, or no supervisor, that is the answer
    client.status(jid)
    tasks = supervisor_parts.collect(client, jid, out, output_bytes)
    root = None if s.url else s.root
    if root is None:
        out.lacks(
            "attempts",
            "scripts and exit files: they are in the supervisor's root; run this there to have them, too",
        )
    else:
        local_files.collect(root, tasks, out)
    also = _configuration(out, root)
    if not no_doctor:
        _doctor(s, out)
    # last what may be large, and is left out first
    out.parts.sort(key=lambda p: p.kind == "output")
    masker = Masker([*s.secrets(), *(local_files.secrets(root, also) if root else ())])
    for part in out.parts:
        masker.learn(part)
    out.parts = [masker.masked(part) for part in out.parts]
    out.missing = [m._replace(why=masker.line(m.why)) for m in out.missing]
    return out


def _configuration(out: "Collected", root: str | None) -> list[str]:
    """Adds it; returns the files that it names for secrets."""
    from ...protocol.errors import Refusal
    from ...service.settings import loader

    if root is None:
        out.lacks(
            "config.json",
            "the configuration is the supervisor's machine's; run this there to have it, too",
        )
        return []
    try:
        settings = loader.load({"root": root})
    except Refusal as e:
        out.lacks("config.json", e.sentence)
        return []
    # a name such as server_secret_file is that of a place, which is no secret
    rows = [
        {"setting": row.key, "is": row.value, "origin": row.origin} for row in loader.show(settings)
    ]
    out.add_json("config.json", rows, "the configuration as this command line finds it")
    s = settings.supervisor
    return [path for path in (s.server_secret_file, s.agents_tls_key) if path]


def _doctor(s: Session, out: "Collected") -> None:
    import msgspec

    from ..doctor.command import run_checks

    out.working("what the doctor finds")
    out.add_json(
        "doctor.json",
        msgspec.to_builtins(run_checks(s)),
        "what `jobscribe doctor` finds here, the supervisor's health with it",
    )


def _show(s: Session, made: dict[str, Any], no_output: bool) -> None:
    from .archive import missing_lines
    from .parts import Missing

    s.screen.table(
        ("PART", "BYTES", "ABOUT"),
        [(i["name"], str(i["bytes"]), i["about"]) for i in made["items"]],
    )
    for line in missing_lines([Missing(**m) for m in made["missing"]]):
        s.screen.message(line)
    if not no_output:
        s.screen.message(
            "What the job itself wrote is in it (--no-output leaves it out); known secrets are replaced there, too."
        )


def _agreed(path: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "nobody can be asked here: look at it with --list, then write it with --yes"
        )
    return click.confirm(f"Write {path}?", err=True)


def _written(path: str, jid: str, collected: "Collected", made: dict[str, Any]) -> int:
    from ...protocol.errors import Refusal
    from .archive import write

    try:
        return write(path, jid, collected, made)
    except FileExistsError:
        raise Refusal(
            "badRequest",
            f"{path} is there already, and is not overwritten; name another file with -o",
        ) from None
    except OSError as e:
        raise Refusal("badRequest", f"{path} cannot be written: {e.strerror}") from None
