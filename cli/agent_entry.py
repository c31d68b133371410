"""`jobscribe keeper`, and the start form of `jobscribe agent`: only another name for the real entry
points, which must not need click.
"""

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
def keeper(args: tuple[str, ...]) -> None:
    """Become `python -m jobscribe.agent.keeper`."""
    become("jobscribe.agent.keeper", args)


def become(module: str, args: tuple[str, ...]) -> NoReturn:
    """`python -m` this module, in place of this process."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *args])
