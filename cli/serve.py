"""`jobscribe up` and `jobscribe supervisor`: configuration in, a supervisor running, one line when it is ready."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from .session import command, session


def _settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed([
        click.option("--port", type=click.IntRange(0, 65535), help="Port of the HTTP interface; 0 takes a free one."),
        click.option("--ip", metavar="IP", help="Address of the HTTP interface."),
        click.option("--config", "file", type=click.Path(), metavar="FILE", help="Configuration file (TOML); must exist."),
        click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Any setting, by its name in `jobscribe config show`."),
    ]):
        function = option(function)
    return function


@command()
@_settings_options
def up(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start a supervisor for this user and stay in front: development mode, on loopback, with a secret of its own.

    Prints one line on standard output when it is ready; its log goes to standard error and <root>/log.
    """
    _serve({"supervisor.port": port, "supervisor.ip": ip, "supervisor.development": True, **assignments(sets)}, file)


@command()
@_settings_options
def supervisor(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start a supervisor with the configured secret and stay in front: for services.

    Prints one line on standard output when it is ready; its log goes to standard error and <root>/log.
    """
    _serve({"supervisor.port": port, "supervisor.ip": ip, **assignments(sets)}, file)


def assignments(sets: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE as settings of the last layer; which names there are is known to the configuration."""
    out = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        out[name] = value
    return out


def _serve(options: dict[str, Any], file: str | None) -> None:
    from ..service.config import load
    from ..supervisor.app import main

    s = session()
    settings = load({"root": s.options.get("root"), **options}, file=file)
    ready = _only_for_the_ready_line()

    def announce(where: dict[str, Any]) -> None:
        with os.fdopen(ready, "w") as out:
            out.write(f"jobscribe ready at {where['url']} root={where['root']}\n")

    main(settings, announce)


def _only_for_the_ready_line() -> int:
    """A descriptor of standard output that nothing else writes to: log lines, also of children, go to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept
