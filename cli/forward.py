"""`jobscribe agent` and `jobscribe keeper`: only another name for the real entry points, which must not need click."""

import os
import sys
from typing import NoReturn

import click

_AS_IS = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.command(context_settings=_AS_IS, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def agent(args: tuple[str, ...]) -> None:
    """Become `python -m jobscribe.agent`."""
    _become("jobscribe.agent", args)


@click.command(context_settings=_AS_IS, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def keeper(args: tuple[str, ...]) -> None:
    """Become `python -m jobscribe.agent.keeper`."""
    _become("jobscribe.agent.keeper", args)


def _become(module: str, args: tuple[str, ...]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", module, *args])
