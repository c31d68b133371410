"""The entry: parses, runs the command, and turns whatever goes wrong into one sentence and an exit
code. No trace reaches the user.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .command_table import top
from .session.session import Session, session_of

FAILED = 125
USAGE = 2
INTERRUPTED = 130
PIPE = 141


def main(args: Sequence[str] | None = None) -> NoReturn:
    """`jobscribe ARGS`. Never returns."""
    sys.exit(call(list(sys.argv[1:] if args is None else args)))


def call(args: list[str]) -> int:
    """Run one command line; returns its exit code."""
    command = top()
    if "_JOBSCRIBE_COMPLETE" in os.environ:
        command.main(args, prog_name="jobscribe")
    ctx = click.Context(command, info_name="jobscribe")
    try:
        ctx = command.make_context("jobscribe", args)
        with ctx:
            command.invoke(ctx)
        return 0
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except click.exceptions.Exit as e:
        return e.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_went_away()
    except Exception as e:
        return _failed(e, session_of(ctx))
    finally:
        session_of(ctx).close()


def _failed(error: Exception, session: Session) -> int:
    if isinstance(error, click.ClickException):
        error.show()
        return USAGE if isinstance(error, click.UsageError) else FAILED
    # Loaded here: what is only needed when something fails must not cost those for whom nothing
    # does.
    from ..client.api.errors import ClientError
    from ..protocol.errors import Refusal
    from .session.crash_report import written

    if isinstance(error, Refusal | ClientError):
        session.screen.failed(error.body())
        return FAILED

    path = written(error, session)
    where = f"; the trace is in {path}" if path else ""
    session.screen.failed(
        {
            "state": "error",
            "code": "internal",
            "error": f"something went wrong inside jobscribe ({type(error).__name__}){where}",
            "advice": "please report it with that file" if path else "",
            "retry": False,
        }
    )
    return FAILED


def _reader_went_away() -> int:
    """Whoever read our output has closed it: end quietly, as programs that a signal ends do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE
