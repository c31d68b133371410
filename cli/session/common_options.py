"""The options that every command takes, before or after the subcommand: which supervisor, and in
which form to answer.

They are collected in the click context and read by `session`; the innermost one given wins.
"""

from typing import Any, TypeVar

import click

from ..terminal.quantities import Secs

_KEY = "jobscribe.options"

Command = TypeVar("Command", bound=click.Command)


def common_options(command: Command) -> Command:
    """The same command with the common options."""
    command.params.extend(
        [
            _option(
                "root",
                "--root",
                metavar="DIR",
                type=click.Path(readable=False),
                help="Root of the supervisor (or JOBSCRIBE_ROOT; else ~/.jobscribe).",
            ),
            _option(
                "url", "--url", metavar="URL", help="Address of the supervisor, instead of a root."
            ),
            _option(
                "token_file",
                "--token-file",
                metavar="FILE",
                type=click.Path(),
                help="File with the secret that goes with --url.",
            ),
            _option("uid", "--uid", metavar="UID", help="Act as this user (needed with --url)."),
            _option(
                "patience",
                "--patience",
                metavar="TIME",
                type=Secs(86400),
                help="Go on trying for so long while the supervisor is away (or JOBSCRIBE_PATIENCE; else 60 s). 0: fail at once.",
            ),
            _option(
                "json",
                "--json",
                is_flag=True,
                default=None,
                help="Answer in JSON: one value, streams as JSON lines.",
            ),
        ]
    )
    return command


def given(ctx: click.Context) -> dict[str, Any]:
    """What was given of the common options, by name."""
    options: dict[str, Any] = ctx.meta.setdefault(_KEY, {})
    return options


def _option(name: str, flag: str, **attributes: Any) -> click.Option:
    return click.Option([flag, name], expose_value=False, callback=_remember, **attributes)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        given(ctx)[param.name] = value
