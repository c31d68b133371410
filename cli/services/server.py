"""`jobscribe server`: the front end for browsers as a process of its own, for service managers."""

from ..session.session import command
from ..session.setting_assignments import assignments
from .startup import (
    gc_disabled,
    given_options,
    load_settings,
    ready_announcer,
    service_exit_codes,
    settings_options,
    systemd_notifier,
)


@command()
@settings_options
def server(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start the front end alone and stay in the foreground: for services, behind a proxy.
    `server.user_hook` identifies the users.

    Prints one line on standard output when it is ready. The log goes to standard error and
    <root>/log.
    """
    with service_exit_codes():
        with gc_disabled():
            from ...web.server.processes import main

        settings = load_settings(
            given_options({"server.port": port, "server.ip": ip, **assignments(sets)}), file
        )
        main(settings, ready_announcer(systemd_notifier()))
