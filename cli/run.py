"""`jobscribe run`: a job in the foreground, with its output and its exit code."""

from typing import Any

import click

from ..protocol.jobs.status import COMPLETED
from .session.last_refusal import record_refusal
from .session.session import Session, command, session
from .submission.foreground import follow, stopping_signals
from .submission.quota_warning import warn_of_quota
from .submission.run_options import run_options, spec_options


@command(context_settings={"allow_interspersed_args": False})
@run_options
@click.option(
    "--in-process",
    "in_process",
    is_flag=True,
    help="Run the command in this process, without a supervisor, for debuggers and coverage.",
)
@click.option(
    "--local",
    "local",
    is_flag=True,
    help="Run it as processes of this machine, by a private supervisor that ends with this command.",
)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    help="With --local: a job file or configuration of OpenPAI, also for containers or a cluster.",
)
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
def run(
    words: tuple[str, ...], in_process: bool, local: bool, path: str | None, **options: Any
) -> None:
    """Submit a command, follow its output, and exit with its code (128+n for signal n, 125 if
    jobscribe itself failed).

    The first Ctrl-C, SIGTERM or SIGHUP cancels the run and waits for its end. The second one exits
    at once, and the run ends on its own. A signal that is ignored at the start (nohup) stays
    ignored.
    """
    s = session()
    fields = spec_options(**options)
    _check(words, in_process, local, path, fields)
    if local:
        from .submission.local_runs import run_here

        raise SystemExit(run_here(s, words, path, fields))
    if in_process:
        raise SystemExit(_run_in_process(s, words, fields))
    with stopping_signals():
        try:
            with record_refusal(s):
                job = s.client().run(words, **fields)
        except KeyboardInterrupt:
            s.screen.message(
                f"no answer yet; 'jobscribe job list --active{s.supervisor_options()}' shows whether the run was submitted"
            )
            raise
        assert job.submitted is not None
        if s.screen.json:
            s.screen.record({"type": "submitted", **job.submitted.raw})
        else:
            warn_of_quota(s, job.submitted.raw)
        raise SystemExit(follow(s, job))


def _run_in_process(s: Session, words: tuple[str, ...], fields: dict[str, Any]) -> int:
    """Run the command in this process, and return its exit code. Its output is that of the process."""
    from ..client.sync_client import Client

    with Client(in_process=True) as client:
        job = client.run(words, **fields)
        state = job.wait()
        if s.screen.json:
            s.screen.record({"type": "ended", **state.raw, "exitCode": state.shell_code})
        elif state.state != COMPLETED or state.shell_code:
            # further advice names commands for a job of a supervisor
            why = job.why()
            s.screen.message(f"{job.jid} {why['state']}: {why['sentence']}")
        return state.shell_code


def _check(
    words: tuple[str, ...], in_process: bool, local: bool, path: str | None, fields: dict[str, Any]
) -> None:
    """Raises click.UsageError for options that exclude each other."""
    if in_process and local:
        raise click.UsageError("give --in-process or --local, not both")
    if path is not None and not local:
        raise click.UsageError(
            "-f requires --local; 'jobscribe job submit -f FILE' submits a job file"
        )
    if bool(words) == (path is not None):
        raise click.UsageError("give a COMMAND" if path is None else "give a COMMAND or -f FILE")
    if path is not None and any(value is not None for value in fields.values()):
        raise click.UsageError("run options cannot be combined with -f: put them into the file")
