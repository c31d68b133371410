"""Other names for the entry points of keeper and agent, which must not need click: `jobscribe
keeper`, and `jobscribe agent` with options.
"""

import os
import sys
from typing import NoReturn

import click


class _PassThrough(click.Command):
    """A command that does not parse its arguments, not even `--help` or `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["args"] = tuple(args)
        return []


@click.command(cls=_PassThrough)
def keeper(args: tuple[str, ...]) -> None:
    """Replace this process by `python -m jobscribe.agent.keeper`."""
    exec_module("jobscribe.agent.keeper", args)


def exec_module(module: str, args: tuple[str, ...]) -> NoReturn:
    """Replace this process by `python -m MODULE ARGS`."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *args])
