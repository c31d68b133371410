"""Startup code shared by `up`, `supervisor` and `server`: options, settings, ready line, exit
codes.
"""

import contextlib
import faulthandler
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import CODES, Refusal
from ..session.session import session

if TYPE_CHECKING:
    from ...service.settings.settings import Settings
    from ...service.systemd import Notifier

#: Exit code of a start that fails until a person changes something (EX_CONFIG of sysexits.h).
EXIT_CONFIG = 78
#: Error codes that may clear without a change, although their `retry` flag is false.
_TRANSIENT = ("rootBusy", "portTaken")


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --port, --ip, --config and --set to a click command function."""
    for option in reversed(
        [
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                help=(
                    "Port of the printed address. 0: a free port (`up` reuses the port of its previous start if it is free)."
                ),
            ),
            click.option("--ip", metavar="IP", help="IP address of the printed address."),
            click.option(
                "--config",
                "file",
                type=click.Path(),
                metavar="FILE",
                help="Configuration file (TOML); must exist.",
            ),
            click.option(
                "--set",
                "sets",
                multiple=True,
                metavar="NAME=VALUE",
                help="Any setting, by its name in `jobscribe config show`.",
            ),
        ]
    ):
        function = option(function)
    return function


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that have a value, with --root of this command line."""
    return {
        k: v for k, v in {"root": session().options.get("root"), **options}.items() if v is not None
    }


def load_settings(options: dict[str, Any], file: str | None) -> "Settings":
    from ...service.settings.loader import load

    settings = load(options, file=file)
    # A crash from here on is reported in this root, also if the root comes from the configuration.
    session().options.setdefault("root", settings.root)
    return settings


def serve_supervisor(options: dict[str, Any], file: str | None) -> None:
    """Run a supervisor in this process until it stops."""
    with gc_disabled():
        from ...supervisor.app import main

    from ...service.site import shards

    settings, notifier = load_settings(given_options(options), file), systemd_notifier()
    if settings.shards.number is not None:
        try:
            shards.make_secrets(settings)
        except OSError as e:
            raise Refusal(
                "badConfig", f"the root {settings.root} cannot be used: {e.strerror}"
            ) from None
    settings = shards.of_shard(settings)
    session().options["root"] = settings.root
    announce = ready_announcer(notifier)
    main(settings, lambda ready: announce(ready["url"], ready["root"]), notifier=notifier)


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection during imports: imported objects stay, and collecting them slows
    down each start (RESULTS.md).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def refusal_exit_codes() -> Iterator[None]:
    """Exit with EXIT_CONFIG for a refusal that a restart cannot clear."""
    try:
        yield
    except Refusal as e:
        if CODES[e.code].retry or e.code in _TRANSIENT:
            raise
        session().screen.failed(e.body())
        raise click.exceptions.Exit(EXIT_CONFIG) from None


@contextlib.contextmanager
def service_exit_codes() -> Iterator[None]:
    """Like `refusal_exit_codes`, for commands that a service manager starts: also print tracebacks.

    The service manager must distinguish failures that a restart may clear from those it cannot.
    """
    # The watchdog ends an unresponsive process with SIGABRT: faulthandler then prints its stacks.
    faulthandler.enable()
    try:
        with refusal_exit_codes():
            yield
    except (Refusal, click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception:
        # Standard error is the service's log: an operator should not need to open another file.
        traceback.print_exc()
        raise


def systemd_notifier() -> "Notifier":
    from ...service.systemd import Notifier

    return Notifier()


def ready_announcer(notifier: "Notifier") -> Callable[[str, str], None]:
    """Return a function (url, root) that prints the ready line on standard output and notifies the
    service manager.
    """
    ready = _reserve_standard_output()

    def announce(url: str, root: str) -> None:
        with os.fdopen(ready, "w") as out:
            out.write(f"jobscribe ready at {url} root={root}\n")
        notifier.ready()

    return announce


def _reserve_standard_output() -> int:
    """Return a descriptor of standard output for the ready line alone. All other output, also of
    child processes, goes to standard error.
    """
    sys.stdout.flush()
    reserved = os.dup(1)
    os.dup2(2, 1)
    return reserved
