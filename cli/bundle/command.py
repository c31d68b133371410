"""The command `bundle`: all data about one job in one archive, without secrets."""

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

_OUTPUT_BYTES, _MAX_OUTPUT_BYTES = 256 * 1024, 512 * 1024
_MAX_SIZE = 64 * 2**20


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Archive file (default: jobscribe-JOB.tar.gz here).",
)
@click.option("--list", "only_list", is_flag=True, help="List the content, and write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Write the archive without asking.")
@click.option("--no-output", is_flag=True, help="Omit the job's output.")
@click.option(
    "--output-bytes",
    type=BYTES,
    default=_OUTPUT_BYTES,
    metavar="SIZE",
    help="Maximum size per stream; the end is kept (default: 256K, at most 512K).",
)
@click.option(
    "--max-size",
    type=BYTES,
    default=_MAX_SIZE,
    metavar="SIZE",
    help="Maximum total size before compression (default: 64M).",
)
@click.option("--no-doctor", is_flag=True, help="Omit the findings of `jobscribe doctor`.")
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
    """Collect status, cause, events, trace, logs, scripts, exits, metrics and output of JOB in one
    archive, after listing the content.

    Known secrets are masked everywhere, others by their names. The archive contains the job's
    output (--no-output omits it). The command works from any machine; it adds scripts and exit
    files if it can read the root. Only you can read the archive (mode 0600).
    """
    from ...protocol.version import VERSION
    from .archive import manifest

    s = session()
    jid = resolve_job(s, name)
    collected = _collect(
        s, jid, 0 if no_output else min(output_bytes, _MAX_OUTPUT_BYTES), no_doctor
    )
    collected.limit_size(max_size)
    contents = manifest(jid, VERSION, collected, time.time())
    path = path or f"jobscribe-{jid}.tar.gz"
    if not s.screen.json:
        _show(s, contents, no_output)
    if only_list:
        if s.screen.json:
            s.screen.value(
                "jobscribe.bundle/1",
                {k: v for k, v in contents.items() if k != "schema"} | {"file": None},
            )
        return
    if not yes and not _confirmed(path):
        s.screen.message("nothing was written")
        raise SystemExit(1)
    size = _write(path, jid, collected, contents)
    if s.screen.json:
        s.screen.value(
            "jobscribe.bundle/1",
            {k: v for k, v in contents.items() if k != "schema"}
            | {"file": os.path.abspath(path), "size": size},
        )
    else:
        s.screen.message(f"wrote {path}, {size} bytes; check its content before you share it")


def _collect(s: Session, jid: str, output_bytes: int, no_doctor: bool) -> "Collected":
    from ...protocol.version import VERSION
    from . import local_files, supervisor_parts
    from .parts import Collected
    from .secret_masking import Masker

    begun = time.monotonic()
    out = Collected(lambda part: s.screen.progress(f"collecting: {part}", time.monotonic() - begun))
    client = s.client_for(jid)
    out.add_json(
        "versions.json",
        {"jobscribe": VERSION, "python": sys.version, "kernel": list(os.uname())},
        "versions of this command line and machine",
    )
    # Fail early if the job or the supervisor is missing.
    client.status(jid)
    tasks = supervisor_parts.collect(client, jid, out, output_bytes)
    root = None if s.remote else s.root
    if root is None:
        out.lacks(
            "attempts",
            "scripts and exit files are in the supervisor's root; to include them, run this command on its machine",
        )
    else:
        local_files.collect(root, tasks, out)
    secret_files = _configuration(out, root)
    if not no_doctor:
        _doctor(s, out)
    # Large parts last: they are omitted first.
    out.parts.sort(key=lambda p: p.kind == "output")
    masker = Masker([*s.secrets(), *(local_files.secrets(root, secret_files) if root else ())])
    for part in out.parts:
        masker.learn(part)
    out.parts = [masker.masked(part) for part in out.parts]
    out.missing = [m._replace(why=masker.line(m.why)) for m in out.missing]
    return out


def _configuration(out: "Collected", root: str | None) -> list[str]:
    """Add the configuration. Return the secret files that it names."""
    from ...protocol.errors import Refusal
    from ...service.settings import loader

    if root is None:
        out.lacks(
            "config.json",
            "the configuration is on the supervisor's machine; to include it, run this command there",
        )
        return []
    try:
        settings = loader.load({"root": root})
    except Refusal as e:
        out.lacks("config.json", e.sentence)
        return []
    # The value of a setting such as server_secret_file is a path, not a secret.
    rows = [
        {"setting": row.key, "is": row.value, "origin": row.origin} for row in loader.show(settings)
    ]
    out.add_json("config.json", rows, "the configuration as seen by this command line")
    s = settings.supervisor
    rotated = [path for path in (s.server_secret_file, s.metrics_secret_file) if path]
    keys = [path for path in (s.agents_tls_key, s.tls_key) if path]
    return [*rotated, *(path + ".earlier" for path in rotated), *keys]


def _doctor(s: Session, out: "Collected") -> None:
    import msgspec

    from ..doctor.command import run_checks

    out.working("findings of the doctor")
    out.add_json(
        "doctor.json",
        msgspec.to_builtins(run_checks(s)),
        "findings of `jobscribe doctor` here, with the supervisor's health",
    )


def _show(s: Session, contents: dict[str, Any], no_output: bool) -> None:
    from .archive import missing_lines
    from .parts import Missing

    s.screen.table(
        ("PART", "BYTES", "ABOUT"),
        [(i["name"], str(i["bytes"]), i["about"]) for i in contents["items"]],
    )
    for line in missing_lines([Missing(**m) for m in contents["missing"]]):
        s.screen.message(line)
    if not no_output:
        s.screen.message(
            "The archive contains the job's output (--no-output omits it), with known secrets masked."
        )


def _confirmed(path: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "this is not a terminal: check the content with --list, then add --yes"
        )
    return click.confirm(f"Write {path}?", err=True)


def _write(path: str, jid: str, collected: "Collected", contents: dict[str, Any]) -> int:
    from ...protocol.errors import Refusal
    from .archive import write

    try:
        return write(path, jid, collected, contents)
    except FileExistsError:
        raise Refusal(
            "badRequest",
            f"{path} exists and is not overwritten; choose another file with -o",
        ) from None
    except OSError as e:
        raise Refusal("badRequest", f"{path} cannot be written: {e.strerror}") from None
