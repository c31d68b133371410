"""`jobscribe agent` and `jobscribe keeper`: only another name for the real entry points, which must not need click."""

import os
import sys
from typing import NoReturn

import click


class _AsIs(click.Command):
    """A command whose arguments are nobody's business here, not even `--help` or `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["args"] = tuple(args)
        return []


@click.command(cls=_AsIs)
def agent(args: tuple[str, ...]) -> None:
    """Become `python -m jobscribe.agent`."""
    _become("jobscribe.agent", args)


@click.command(cls=_AsIs)
def keeper(args: tuple[str, ...]) -> None:
    """Become `python -m jobscribe.agent.keeper`."""
    _become("jobscribe.agent.keeper", args)


def _become(module: str, args: tuple[str, ...]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *args])
