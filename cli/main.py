"""The entry point: parses arguments, runs the command, and turns each error into one sentence and
an exit code. Users see no traceback.
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
    """Run `jobscribe ARGS` and exit."""
    sys.exit(call(list(sys.argv[1:] if args is None else args)))


def call(args: list[str]) -> int:
    """Run one command line and return its exit code."""
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
        return _reader_closed()
    except Exception as e:
        return _report_error(e, session_of(ctx))
    finally:
        session_of(ctx).close()


def _report_error(error: Exception, session: Session) -> int:
    if isinstance(error, click.ClickException):
        error.show()
        return USAGE if isinstance(error, click.UsageError) else FAILED
    # Imported here: a successful command does not need these modules.
    from ..client.api.errors import ClientError
    from ..protocol.errors import Refusal
    from .session.crash_report import write_crash_report

    if isinstance(error, Refusal | ClientError):
        session.screen.failed(error.body())
        return FAILED

    path = write_crash_report(error, session)
    where = f"; the traceback is in {path}" if path else ""
    session.screen.failed(
        {
            "state": "error",
            "code": "internal",
            "error": f"internal error of jobscribe ({type(error).__name__}){where}",
            "advice": "report it with this file" if path else "",
            "retry": False,
        }
    )
    return FAILED


def _reader_closed() -> int:
    """Exit without a message, like a program that SIGPIPE ends: the output's reader closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE
