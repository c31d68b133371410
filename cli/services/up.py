"""`jobscribe up`: supervisor and front end for one user, in development mode on loopback."""

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import Refusal
from ...protocol.shards import MOST
from ..session.session import command
from ..session.setting_assignments import assignments
from .startup import (
    gc_disabled,
    given_options,
    load_settings,
    ready_announcer,
    refusal_exit_codes,
    serve_supervisor,
    settings_options,
    systemd_notifier,
)

if TYPE_CHECKING:
    from ...service.settings.settings import Settings
    from .front_end import FrontEndProcess


@command()
@settings_options
@click.option(
    "--no-web",
    is_flag=True,
    help="Start no front end; print the address of the supervisor's own interface.",
)
@click.option(
    "--store",
    metavar="URL",
    help="PostgreSQL database of the event store, without a password (setting store.url).",
)
@click.option(
    "--shards",
    "count",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Divide the users into N shards, each with a supervisor, behind a router (setting shards.count).",
)
def up(
    port: int | None,
    ip: str | None,
    file: str | None,
    sets: tuple[str, ...],
    no_web: bool,
    store: str | None,
    count: int | None,
) -> None:
    """Start supervisor and front end for this user and stay in the foreground: development mode, on
    loopback, with its own secret.

    Prints one line on standard output when it is ready, with the address for browsers. The log goes
    to standard error and <root>/log. If --port is given, the supervisor's own interface uses a free
    port (see <root>/client.json).
    """
    given: dict[str, Any] = {
        "supervisor.development": True,
        **({} if store is None else {"store.url": store}),
        **({} if count is None else {"shards.count": count}),
        **assignments(sets),
    }
    with refusal_exit_codes():
        if no_web:
            alone = given_options({"supervisor.port": port, "supervisor.ip": ip, **given})
            settings = load_settings(alone, file)
            if settings.shards.count is not None:
                _serve_shards(settings, alone, file, None)
            else:
                serve_supervisor(alone, file)
            return
        options = given_options({"server.port": port, "server.ip": ip, **given})
        settings = load_settings(options, file)
        if port is not None and "supervisor.port" not in settings.origins:
            options["supervisor.port"] = 0
            settings = load_settings(options, file)
        from ...service.site.shards import of_shard
        from .front_end import FrontEndProcess

        if settings.shards.count is None:
            of_shard(settings)  # refuses the root of a site with shards
        front_end = FrontEndProcess(settings, options, file)
        if settings.shards.count is not None:
            _serve_shards(settings, options, file, front_end)
        else:
            _serve_with_front_end(settings, front_end)


def _serve_shards(
    settings: "Settings",
    options: dict[str, Any],
    file: str | None,
    front_end: "FrontEndProcess | None",
) -> None:
    """Run the supervisors of all shards in child processes, and the router in this one."""
    from .shard_processes import ShardProcesses

    shards = ShardProcesses(settings, options, file)
    try:
        shards.start()
        if front_end is not None:
            _serve_with_front_end(settings, front_end)
            return
        with gc_disabled():
            from ...router.app import main

        notifier = systemd_notifier()
        announce = ready_announcer(notifier)
        main(settings, lambda ready: announce(ready["url"], ready["root"]), notifier=notifier)
    finally:
        shards.stop()


def _serve_with_front_end(settings: "Settings", front_end: "FrontEndProcess") -> None:
    """Run the supervisor or router in this process and the front end in a child process."""
    with gc_disabled():
        if settings.shards.count is not None:
            from ...router.app import main
        else:
            from ...supervisor.app import main

    notifier = systemd_notifier()
    announce = ready_announcer(notifier)
    failed = False

    def give_up() -> None:
        nonlocal failed
        failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        main(
            settings,
            lambda ready: front_end.start(lambda: announce(front_end.url, ready["root"]), give_up),
            front=front_end.url,
            notifier=notifier,
        )
    finally:
        front_end.stop()
    if failed:
        raise Refusal(
            "internal",
            "the front end did not start; the log lines above give the reason ('jobscribe up --no-web' starts without it)",
        )
