"""The address of an event store in PostgreSQL, as `store.url` has it. Pure: needs no driver.

The address is a URL of libpq, with one more parameter: `schema`, the name of the site's schema. It
has no password: that is in a file (`store.password_file`), in libpq's password file, or the server
identifies the unix user.
"""

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ..protocol.errors import Refusal

SCHEMA = "jobscribe"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SECRETS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
#: Parameters that the store sets, or that read an address from elsewhere.
_OWN = frozenset({"service", "options", "application_name", "client_encoding"})


class StoreAddress(NamedTuple):
    """url: for libpq. schema: of the site. name: for messages, without a password."""

    url: str
    schema: str
    name: str
    user: str | None


def parsed(url: str) -> StoreAddress:
    """Return the address. Raises Refusal: unsafe for a password or an unprotected connection,
    badConfig for other problems. No message repeats a password.
    """
    try:
        parts = urlsplit(url)
        text = parts.query.replace("+", "%2B")  # libpq decodes no plus sign
        query = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))
        secret = parts.password is not None or any(key in _SECRETS for key, _ in query)
    except ValueError:
        raise _bad("it is not a URL") from None
    if secret:
        raise Refusal(
            "unsafe",
            "store.url has a password, which logs and process lists would show: remove it, and set"
            " store.password_file to a file that only the supervisor's unix user can read",
        )
    if parts.scheme not in ("postgresql", "postgres"):
        raise _bad("it does not begin with postgresql://")
    for key in _OWN & {key for key, _ in query}:
        raise _bad(f"it has the parameter {key}, which cannot be set")
    values = dict(query)
    schema = values.pop("schema", SCHEMA)
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise _bad(
            "its schema must have at most 48 small letters, digits and underscores, and no pg_ in front"
        )
    _refuse_in_clear(parts.netloc, values)
    rest = urlencode(values, safe="/:,", quote_via=quote)
    clean = f"postgresql://{parts.netloc}{parts.path}" + (f"?{rest}" if rest else "")
    user = parts.username or values.get("user")
    return StoreAddress(clean, schema, f"{clean}, schema {schema},", user)


def _refuse_in_clear(netloc: str, values: dict[str, str]) -> None:
    named = [_host(part) for part in netloc.rpartition("@")[2].split(",")]
    named += [values.get(key, "") for key in ("host", "hostaddr")]
    hosts = [h for some in named for h in some.split(",") if h]
    if not hosts:
        raise _bad(
            "it names no host: add the folder of the server's Unix socket, for example ?host=/run/postgresql"
        )
    far = next((h for h in hosts if not _is_here(h)), None)
    if far is not None and values.get("sslmode") != "verify-full":
        raise Refusal(
            "unsafe",
            f"store.url has the host {far} without sslmode=verify-full: others can read or change what is"
            " stored; add sslmode=verify-full (and sslrootcert), or use an ssh tunnel to loopback",
        )


def _host(part: str) -> str:
    """Return the host of `host:port` or `[address]:port`; several if their comma is encoded."""
    if part.startswith("["):
        return part[1:].partition("]")[0]
    return unquote(part.partition(":")[0])


def _is_here(host: str) -> bool:
    if host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bad(what: str) -> Refusal:
    return Refusal(
        "badConfig",
        f"store.url is wrong: {what}; it has the form postgresql://USER@HOST:PORT/DATABASE?sslmode=verify-full&schema=NAME",
    )
