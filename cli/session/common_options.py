"""The options of every command, before or after the subcommand: supervisor, user and output format.

The click context collects them, and `session` reads them. The last one given wins.
"""

from typing import Any, TypeVar

import click

from ..terminal.quantities import Secs

_KEY = "jobscribe.options"

Command = TypeVar("Command", bound=click.Command)


def common_options(command: Command) -> Command:
    """Add the common options to a command and return it."""
    command.params.extend(
        [
            _option(
                "root",
                "--root",
                metavar="DIR",
                type=click.Path(readable=False),
                help="Root of the supervisor (default: JOBSCRIBE_ROOT, else ~/.jobscribe).",
            ),
            _option(
                "url",
                "--url",
                metavar="URL",
                help="Address of the supervisor, instead of a root; several with commas between them.",
            ),
            _option(
                "site",
                "--site",
                metavar="URL",
                help="Site of a login with 'jobscribe auth login', instead of a root (default: JOBSCRIBE_SITE, else the last login).",
            ),
            _option(
                "token_file",
                "--token-file",
                metavar="FILE",
                type=click.Path(),
                help="File with the secret or API token for --url.",
            ),
            _option(
                "uid",
                "--uid",
                metavar="UID",
                help="Act as this user (with --url and the server secret: required).",
            ),
            _option(
                "patience",
                "--patience",
                metavar="TIME",
                type=Secs(86400),
                help="Retry for this time while the supervisor is unavailable (default: JOBSCRIBE_PATIENCE, else 60 s). 0: fail at once.",
            ),
            _option(
                "json",
                "--json",
                is_flag=True,
                default=None,
                help="Print JSON: one value, or a stream of JSON lines.",
            ),
        ]
    )
    return command


def given(ctx: click.Context) -> dict[str, Any]:
    """Return the common options that were given, by name."""
    options: dict[str, Any] = ctx.meta.setdefault(_KEY, {})
    return options


def _option(name: str, flag: str, **attributes: Any) -> click.Option:
    return click.Option([flag, name], expose_value=False, callback=_remember, **attributes)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        given(ctx)[param.name] = value
