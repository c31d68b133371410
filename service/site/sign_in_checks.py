"""Checks of the settings by which people sign in at the front end. Secrets are read, and nothing is
opened.
"""

from collections.abc import Iterator

from ...protocol.errors import Refusal
from ..settings.settings import Settings
from .secret_files import read_secret, unsafe

#: The settings of which one identifies users.
WAYS = ("server.oidc_issuer", "server.pam_service", "server.user_header", "server.user_hook")
_OIDC = ("oidc_client_id", "oidc_client_secret_file")


def ways(settings: Settings) -> list[str]:
    """Return the settings that are set and identify users."""
    return [w for w in WAYS if _value(settings, w) is not None]


def problems(settings: Settings) -> Iterator[Refusal]:
    """Yield why people could not sign in, or could sign in as others. Reads no file."""
    given = ways(settings)
    if len(given) > 1:
        named = " and ".join(f"{w} ({_origin(settings, w)})" for w in given)
        yield Refusal(
            "badConfig",
            f"{named} are {'both' if len(given) == 2 else 'all'} set, and one of them identifies users: remove the"
            f" other{'s' if len(given) > 2 else ''}",
        )
    s = settings.server
    if s.user_header is not None and not settings.limits.trusted_peers:
        yield unsafe(
            "server.user_header is set, and limits.trusted_peers is empty: name the proxy's unix user or address"
            " there, as in 'www-data', because every local user can connect and send this header"
        )
    if s.oidc_issuer is not None:
        yield from _missing(settings, "server.oidc_issuer", (*_OIDC, "public_url", "uid_file"))
    else:
        for name in _OIDC:
            if getattr(s, name) is not None:
                yield Refusal(
                    "badConfig",
                    f"server.{name} ({_origin(settings, 'server.' + name)}) has no use without server.oidc_issuer:"
                    " set that, or remove it",
                )
    if s.pam_service is not None:
        yield from _missing(settings, "server.pam_service", ("public_url", "uid_file"))


def secret_problems(settings: Settings) -> Iterator[Refusal]:
    """Yield why the secret of the OpenID Connect client cannot be used by this process."""
    path = settings.server.oidc_client_secret_file
    if path is not None:
        try:
            read_secret(path, "server.oidc_client_secret_file")
        except Refusal as problem:
            yield problem


def _missing(settings: Settings, way: str, names: tuple[str, ...]) -> Iterator[Refusal]:
    missing = [f"server.{n}" for n in names if getattr(settings.server, n) is None]
    if missing:
        yield Refusal(
            "badConfig",
            f"{way} ({_origin(settings, way)}) needs more settings: set {' and '.join(missing)}",
        )


def _value(settings: Settings, name: str) -> object:
    return getattr(settings.server, name.partition(".")[2])


def _origin(settings: Settings, name: str) -> str:
    return settings.origins.get(name, "default")
