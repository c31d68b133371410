"""`jobscribe up`, `supervisor` and `server`: configuration in, processes running, one line when
they are ready.

As services they tell systemd what it wants to know, and say by their exit code whether starting
them again can help.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import CODES, Refusal
from ..session.session import command, session

if TYPE_CHECKING:
    from ...service.settings.settings import Settings
    from ...service.systemd import Notifier
    from .front_end import FrontEndProcess

#: Exit code of a start that cannot succeed before a person has changed something (EX_CONFIG of
#: sysexits.h).
NOT_LIKE_THIS = 78
#: What passes by itself, although the very same request would not be answered otherwise.
_PASSES = ("rootBusy", "portTaken")


def _settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                help=(
                    "Port of the address that is printed; 0 takes a free one (`up`: that of its previous start, if it is free)."
                ),
            ),
            click.option("--ip", metavar="IP", help="The address itself."),
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


@command()
@_settings_options
@click.option(
    "--no-web",
    is_flag=True,
    help="Start no front end: print the address of the supervisor's own interface.",
)
def up(
    port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...], no_web: bool
) -> None:
    """Start supervisor and front end for this user and stay in front: development mode, on
    loopback, with a secret of its own.

    Prints one line on standard output when it is ready, with the address for browsers; its log goes
    to standard error and <root>/log. Where a port is given, the supervisor's own interface takes a
    free one (see <root>/client.json).
    """
    given: dict[str, Any] = {"supervisor.development": True, **assignments(sets)}
    with _refusals():
        if no_web:
            _serve({"supervisor.port": port, "supervisor.ip": ip, **given}, file)
            return
        options = _options({"server.port": port, "server.ip": ip, **given})
        settings = _loaded(options, file)
        if port is not None and "supervisor.port" not in settings.origins:
            options["supervisor.port"] = 0
            settings = _loaded(options, file)
        from .front_end import FrontEndProcess

        _both(settings, FrontEndProcess(settings, options, file))


@command()
@_settings_options
def supervisor(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start a supervisor with the configured secret and stay in front: for services.

    Prints one line on standard output when it is ready; its log goes to standard error and
    <root>/log.
    """
    with _service():
        _serve({"supervisor.port": port, "supervisor.ip": ip, **assignments(sets)}, file)


@command()
@_settings_options
def server(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start the front end alone and stay in front: for services, behind a proxy. `server.user_hook`
    says who the users are.

    Prints one line on standard output when it is ready; its log goes to standard error and
    <root>/log.
    """
    with _service():
        with _uncollected():
            from ...web.server.processes import main

        settings = _loaded(
            _options({"server.port": port, "server.ip": ip, **assignments(sets)}), file
        )
        main(settings, _announcer(_notifier()))


def assignments(sets: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE as settings of the last layer; which names there are is known to the
    configuration.
    """
    out = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        out[name] = value
    return out


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, and the root of this command line."""
    return {
        k: v for k, v in {"root": session().options.get("root"), **options}.items() if v is not None
    }


def _loaded(options: dict[str, Any], file: str | None) -> "Settings":
    from ...service.settings.loader import load

    settings = load(options, file=file)
    # what goes wrong from here on is kept in this root, whoever named it
    session().options.setdefault("root", settings.root)
    return settings


def _serve(options: dict[str, Any], file: str | None) -> None:
    with _uncollected():
        from ...supervisor.app import main

    settings, notifier = _loaded(_options(options), file), _notifier()
    say = _announcer(notifier)
    main(settings, lambda where: say(where["url"], where["root"]), notifier=notifier)


def _both(settings: "Settings", door: "FrontEndProcess") -> None:
    """The supervisor in this process, the front end in one beside it."""
    with _uncollected():
        from ...supervisor.app import main

    notifier = _notifier()
    say = _announcer(notifier)
    failed = False

    def give_up() -> None:
        nonlocal failed
        failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        main(
            settings,
            lambda where: door.start(lambda: say(door.url, where["root"]), give_up),
            front=door.url,
            notifier=notifier,
        )
    finally:
        door.stop()
    if failed:
        raise Refusal(
            "internal",
            "the front end did not start; the lines above say why ('jobscribe up --no-web' starts without it)",
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """While modules are imported: what they make stays, and looking for garbage in it costs a part
    of each start (RESULTS.md).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Exit with NOT_LIKE_THIS for a refusal that another start does not mend."""
    try:
        yield
    except Refusal as e:
        if CODES[e.code].retry or e.code in _PASSES:
            raise
        session().screen.failed(e.body())
        raise click.exceptions.Exit(NOT_LIKE_THIS) from None


@contextlib.contextmanager
def _service() -> Iterator[None]:
    """For the commands that a service manager starts: it must be able to tell what a restart may
    mend from what it cannot.
    """
    # a watchdog ends with SIGABRT what does not answer: where it stood is what one wants to know
    # then
    faulthandler.enable()
    try:
        with _refusals():
            yield
    except (Refusal, click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception:
        # standard error is the log here: whoever looks into it at night should not have to find
        # another file
        traceback.print_exc()
        raise


def _notifier() -> "Notifier":
    from ...service.systemd import Notifier

    return Notifier()


def _announcer(notifier: "Notifier") -> Callable[[str, str], None]:
    """What prints the one line that stands on standard output, and tells a service manager."""
    ready = _only_for_the_ready_line()

    def say(url: str, root: str) -> None:
        with os.fdopen(ready, "w") as out:
            out.write(f"jobscribe ready at {url} root={root}\n")
        notifier.ready()

    return say


def _only_for_the_ready_line() -> int:
    """A descriptor of standard output that nothing else writes to: log lines, also of children, go
    to standard error.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept
