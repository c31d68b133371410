"""`jobscribe router`: a router of a site with shards, for service managers."""

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
def router(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start a router of a site with shards and stay in the foreground: for services. It forwards each
    request to the supervisor of the shard that has its user. Any number of routers may run.

    Prints one line on standard output when it is ready. The log goes to standard error and
    <root>/log.
    """
    with service_exit_codes():
        with gc_disabled():
            from ...router.app import main

        options = {"supervisor.port": port, "supervisor.ip": ip, **assignments(sets)}
        settings, notifier = load_settings(given_options(options), file), systemd_notifier()
        announce = ready_announcer(notifier)
        main(settings, lambda ready: announce(ready["url"], ready["root"]), notifier=notifier)
