"""`jobscribe secret`: rotate the secrets of a site, and list them without their values."""

import http.client
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...protocol.errors import Refusal
from ..session.session import command, session
from ..session.setting_assignments import assignments
from ..terminal.quantities import Secs, duration, moment

if TYPE_CHECKING:
    from ...service.settings.settings import Settings

_NAMES = ("server", "metrics")
_DEFAULT_OVERLAP_SECS = 3600.0
#: How long to wait until the supervisor uses a new secret, in seconds.
_TAKEN_SECS, _REQUEST_SECS, _PAUSE_SECS = 10.0, 5.0, 0.2
#: Requests that need the secret and change nothing.
_PROBES = {"server": "/api/whoami", "metrics": "/health"}
_HEADS = ("SECRET", "STATE", "AGE", "EARLIER", "ACCEPTED UNTIL", "FILE")


class _Taken(NamedTuple):
    """Whether the supervisor uses the new secret; None: it cannot be asked."""

    taken: bool | None
    sentence: str


def _configuration(function: Any) -> Any:
    file = click.option(
        "--config",
        "file",
        type=click.Path(),
        metavar="FILE",
        help="Configuration file of the supervisor (TOML), which names its secret files.",
    )
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting, as for `supervisor`.",
    )
    return file(sets(function))


@command()
@click.argument("names", metavar="NAME...", type=click.Choice(_NAMES), nargs=-1, required=True)
@click.option(
    "--overlap",
    type=Secs(30 * 86400),
    default=_DEFAULT_OVERLAP_SECS,
    metavar="TIME",
    help="How long the earlier secret stays valid, as in 1h: 1m to 30d (default: 1h).",
)
@click.option(
    "--now",
    is_flag=True,
    help="Refuse the earlier secrets at once: for a secret that others may know.",
)
@_configuration
def rotate(
    names: tuple[str, ...], overlap: float, now: bool, file: str | None, sets: tuple[str, ...]
) -> None:
    """Replace secrets by new random ones. A running supervisor uses them at once; agents and jobs
    continue, and need no secret of these.

    \b
    server   secret of front ends and local commands; it also signs tickets and cookies
    metrics  token for monitoring

    Exits with 1 if the supervisor was asked and does not use the new secret.
    """
    from ...service.site.secret_rotation import MIN_OVERLAP_SECS

    if not now and overlap < MIN_OVERLAP_SECS:
        raise click.UsageError(
            f"--overlap is at least {MIN_OVERLAP_SECS:g} s, because clients look at their files every 10 s;"
            " --now ends the earlier secret at once"
        )
    s = session()
    settings = _settings(file, sets)
    rows = [_rotate(settings, name, 0.0 if now else overlap) for name in dict.fromkeys(names)]
    if s.screen.json:
        s.screen.value("jobscribe.secret.rotate/1", {"items": rows})
    else:
        for row in rows:
            s.screen.line(_rotated(row))
    raise SystemExit(1 if any(row["inUse"] is False for row in rows) else 0)


def _rotate(settings: "Settings", name: str, overlap_secs: float) -> dict[str, Any]:
    """Rotate one secret. overlap_secs: 0 to end the earlier ones at once. Raises Refusal."""
    from ...service.site.secret_rotation import rotate as replace

    path, setting = _file(settings, name)
    try:
        values = replace(path, setting, overlap_secs, time.time())
    except OSError as e:
        raise Refusal(
            "badConfig",
            f"the {name} secret was not rotated: {path} or the file beside it cannot be written: {e.strerror}",
            {"advice": "free disk space; in a folder of root, as /etc, run this command as root"},
        ) from None
    session().typed.extend(values.all)  # crash reports mask them
    earlier = values.earlier[0]
    taken = _wait_taken(settings.root, name, values.current, earlier.secret, overlap_secs == 0)
    return {
        "secret": name,
        "file": path,
        "earlierUntil": earlier.until if overlap_secs else None,
        "inUse": taken.taken,
        "sentence": taken.sentence,
    }


def _rotated(row: dict[str, Any]) -> str:
    until = row["earlierUntil"]
    earlier = (
        "the earlier ones are refused now"
        if until is None
        else f"the earlier one is accepted until {moment(until)}"
    )
    copies = "replace copies of the file on other machines"
    limit = "" if until is None else " before that"
    return f"{row['secret']}: {row['sentence']}; {earlier}; {copies}{limit} ({row['file']})"


@command(name="list")
@_configuration
def list_secrets(file: str | None, sets: tuple[str, ...]) -> None:
    """List the secrets of this site: age, and how many earlier ones are accepted until when. Values
    are never shown.
    """
    s = session()
    settings = _settings(file, sets)
    rows = [_row(settings, name, time.time()) for name in _NAMES]
    if s.screen.json:
        s.screen.value("jobscribe.secret.list/1", {"items": rows})
        return
    s.screen.table(
        _HEADS,
        [
            [
                r["secret"],
                r["error"] or "ok",
                "-" if r["ageSecs"] is None else duration(r["ageSecs"]),
                str(r["earlier"]),
                moment(r["earlierUntil"]),
                r["file"],
            ]
            for r in rows
        ],
    )


def _row(settings: "Settings", name: str, now: float) -> dict[str, Any]:
    from ...service.site.secret_rotation import read

    path, setting = _path(settings, name)
    row: dict[str, Any] = {
        "secret": name,
        "file": path,
        "error": None,
        "ageSecs": None,
        "earlier": 0,
        "earlierUntil": None,
    }
    try:
        found = os.stat(path)
        row["ageSecs"] = max(0.0, now - found.st_mtime)
        # root may look at the files of a service's user
        owner = found.st_uid if os.geteuid() == 0 else None
        valid = [e for e in read(path, setting, owner=owner).earlier if e.until > now]
    except FileNotFoundError:
        return {**row, "error": _missing(setting)}
    except OSError as e:
        return {**row, "error": f"{path} cannot be read: {e.strerror}"}
    except Refusal as e:
        return {**row, "error": e.sentence}
    return {
        **row,
        "earlier": len(valid),
        "earlierUntil": max((e.until for e in valid), default=None),
    }


def _settings(file: str | None, sets: tuple[str, ...]) -> "Settings":
    from ...service.settings import loader

    root = session().root if file is None else session().options.get("root")
    return loader.load({"root": root, **assignments(sets)}, file=file)


def _path(settings: "Settings", name: str) -> tuple[str, str]:
    """Return the file of a secret, and the setting that names it."""
    setting = f"{name}_secret_file"
    configured: str | None = getattr(settings.supervisor, setting)
    if configured is not None:
        return configured, f"supervisor.{setting}"
    return os.path.join(settings.root, "secret", name), f"secret/{name}"


def _file(settings: "Settings", name: str) -> tuple[str, str]:
    path, setting = _path(settings, name)
    if not os.path.exists(path):
        raise Refusal(
            "badConfig",
            f"there is no {name} secret at {path}: {_missing(setting)}",
        )
    return path, setting


def _missing(setting: str) -> str:
    """Say why there is no file. setting: names it."""
    if setting.startswith("supervisor."):
        return f"{setting} names a file that does not exist"
    return (
        "a supervisor creates it at its first start, or the configuration names another file"
        " (--config FILE)"
    )


def _wait_taken(root: str, name: str, new: str, old: str, now: bool) -> _Taken:
    """Wait until the supervisor of this root accepts the new secret, and refuses the earlier one if
    `now`.
    """
    from ...client.api.errors import ClientError
    from ...client.transport.address import in_root

    try:
        url = in_root(root)().url
    except ClientError:
        return _Taken(None, "rotated; no supervisor runs, the next one uses the new secret")
    s, begun = session(), time.monotonic()
    while True:
        status = _status(url, _PROBES[name], new)
        if status is None:
            return _Taken(
                None,
                f"rotated; not verified, because no supervisor answers at {url}; the next one uses the new secret",
            )
        if status != 401 and (not now or _status(url, _PROBES[name], old) == 401):
            return _Taken(True, "rotated; the supervisor uses the new secret")
        if time.monotonic() - begun > _TAKEN_SECS:
            return _Taken(
                False,
                f"the supervisor at {url} does not use the new secret: it has another secret file (name its"
                " configuration with --config FILE), or 'jobscribe health' says why",
            )
        s.screen.progress("waiting for the supervisor", time.monotonic() - begun)
        time.sleep(_PAUSE_SECS)


def _status(url: str, path: str, secret: str) -> int | None:
    """Return the status of a request with this secret, None if nothing answers. url: of the
    listener on loopback.
    """
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=_REQUEST_SECS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
