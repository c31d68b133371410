"""`jobscribe supervisor`: a supervisor with a configured secret, for service managers."""

from ..session.session import command
from ..session.setting_assignments import assignments
from .startup import serve_supervisor, service_exit_codes, settings_options


@command()
@settings_options
def supervisor(port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...]) -> None:
    """Start a supervisor with the configured secret and stay in the foreground: for services.

    Prints one line on standard output when it is ready. The log goes to standard error and
    <root>/log.
    """
    with service_exit_codes():
        serve_supervisor({"supervisor.port": port, "supervisor.ip": ip, **assignments(sets)}, file)
