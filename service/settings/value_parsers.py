"""Parsers that convert the text of a setting to its value, based on pykern.pkconfig.

Input is a typed value (file) or text (environment, option). A parser raises `InvalidValue` with the
expected form. pkconfig raises AssertionError instead, knows only whole seconds, and accepts a unit
of bytes (P) that it cannot multiply.
"""

import ipaddress
import pwd
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from ...protocol import durations
from ...protocol.shards import MOST
from ...schema.fields import InvalidValue
from .pykern_import import pkconfig

Parser = Callable[[Any], Any]

#: All drivers.
DRIVERS = ("local", "docker", "sbatch")
_NOTHING = ("", "none", "null")
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_GPU = re.compile(r"auto|\d{1,3}|(?:GPU|MIG)-[A-Za-z0-9/-]{1,100}", re.ASCII)
_CLAIM = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,127}", re.ASCII)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,128}", re.ASCII)
_SERVICE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_APP = re.compile(
    r"[a-z][a-z0-9_]{0,31}=[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII
)


_HOST_PORT = re.compile(r"[A-Za-z0-9.\-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}")


def text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidValue("must be text")
    return value


def boolean(value: Any) -> bool:
    return bool(
        _by(
            pkconfig.parse_bool,
            value if isinstance(value, str | bool) else None,
            "must be true or false (also yes, no, 1, 0)",
        )
    )


def seconds(value: Any) -> float:
    form = "must be a number of seconds, at least 0, or a time as in 90, 0.5, 15m, 2h, 1:30, 2d12:00:00 or 2-12:00:00"
    if isinstance(value, float) and 0 <= value < 1e9:
        return value
    if isinstance(value, str) and (found := durations.seconds(value)) is not None and found < 1e9:
        return found
    return float(_by(pkconfig.parse_seconds, None if isinstance(value, bool) else value, form))


def positive_seconds(value: Any) -> float:
    secs = seconds(value)
    if secs <= 0:
        raise InvalidValue("must be more than 0 seconds")
    return secs


def size(value: Any) -> int:
    form = "must be a number of bytes, as in 65536, 64K, 16MB or 1G"
    return int(_by(pkconfig.parse_bytes, None if isinstance(value, bool) else value, form))


def count(value: Any) -> int:
    return int(
        _by(
            pkconfig.parse_positive_int,
            None if isinstance(value, bool) else value,
            "must be a whole number, at least 1",
        )
    )


def port_number(value: Any) -> int:
    form = "must be a port, 1 to 65535, or 0 for a free one"
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    number = int(_by(pkconfig.parse_positive_int, None if isinstance(value, bool) else value, form))
    if number > 65535:
        raise InvalidValue(form)
    return number


def port_range(value: Any) -> tuple[int, int]:
    """Parse the first and last port, as in "30000-32767"."""
    form = 'must be two ports from 1024 to 65535, the lower one first, as in "30000-32767"'
    given = (
        f"{value[0]}-{value[1]}" if isinstance(value, tuple | list) and len(value) == 2 else value
    )
    first, dash, last = given.partition("-") if isinstance(given, str) else ("", "", "")
    try:
        low, high = port_number(first), port_number(last)
    except InvalidValue:
        raise InvalidValue(form) from None
    if not dash or not 1024 <= low <= high:
        raise InvalidValue(form)
    return low, high


def pattern(value: Any) -> str:
    # imported here: only a set pattern needs it
    from ...diagnosis.safe_patterns import Pattern

    given = text(value)
    try:
        Pattern(given)
    except ValueError as e:
        raise InvalidValue(str(e)) from None
    return given


def app_list(value: Any) -> tuple[str, ...]:
    """Parse `name=module:attribute` items: a list, or text separated by commas or blanks."""
    form = "must be app names with their modules, as in 'crack=my_apps.crack:app, friction=my_apps.friction:app'"
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(
        isinstance(w, str) and _APP.fullmatch(w) for w in words
    ):
        raise InvalidValue(form)
    names = [w.partition("=")[0] for w in words]
    if len(set(names)) != len(names):
        raise InvalidValue(f"{form}; each name once")
    return tuple(words)


def words(value: Any) -> tuple[str, ...]:
    """Parse lower-case words: a list, or text separated by commas or blanks."""
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(
        isinstance(w, str) and _WORD.fullmatch(w) for w in given
    ):
        raise InvalidValue(
            "must be words of lower-case letters, digits, _ and -, separated by commas"
        )
    return tuple(given)


def header_name(value: Any) -> str:
    """Return the name of an HTTP header. Servers drop names with an underscore."""
    name = text(value)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,63}", name):
        raise InvalidValue("must be the name of a header: letters, digits and -, at most 64")
    return name


def site_url(value: Any) -> str:
    """Return the address of a site, without a slash at its end: https, or http on loopback."""
    form = "must be an address as in 'https://jobs.example.org' (http on loopback only), without user, query and fragment"
    given = text(value).rstrip("/")
    try:
        parts = urlsplit(given)
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        raise InvalidValue(form) from None
    host = parts.hostname or ""
    plain = parts.scheme == "http" and (host == "localhost" or _is_loopback(host))
    if (
        not host
        or not (parts.scheme == "https" or plain)
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not given.isascii()
        or not given.isprintable()
        or " " in given
    ):
        raise InvalidValue(form)
    return given


def issuer_url(value: Any) -> str:
    """Return the address of an OpenID Connect provider, unchanged: it is compared as text."""
    site_url(value)
    return text(value)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def claim_name(value: Any) -> str:
    name = text(value)
    if not _CLAIM.fullmatch(name):
        raise InvalidValue("must be the name of a claim, as in 'preferred_username' or 'email'")
    return name


def scopes(value: Any) -> tuple[str, ...]:
    """Parse scopes of OpenID Connect: a list, or text separated by commas or blanks."""
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if (
        not isinstance(given, list | tuple)
        or not all(isinstance(w, str) and _SCOPE.fullmatch(w) for w in given)
        or "openid" not in given
    ):
        raise InvalidValue("must be scopes with openid among them, as in 'openid, profile, email'")
    return tuple(given)


def pam_service(value: Any) -> str:
    name = text(value)
    if not _SERVICE.fullmatch(name):
        raise InvalidValue("must be the name of a file in /etc/pam.d, as in 'jobscribe'")
    return name


def host_ports(value: Any) -> tuple[str, ...]:
    """Parse addresses of the form host:port: a list, or text separated by commas or blanks."""
    found = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(
        isinstance(w, str) and _HOST_PORT.fullmatch(w) for w in found
    ):
        raise InvalidValue(
            "must be addresses host:port, separated by commas, as in 'b.example.org:8444'"
        )
    return tuple(found)


def shard_count(value: Any) -> int:
    number = count(value)
    if number > MOST:
        raise InvalidValue(f"must be a whole number from 1 to {MOST}")
    return number


def shard_number(value: Any) -> int:
    form = f"must be the number of a shard, 0 to {MOST - 1}"
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    number = int(_by(pkconfig.parse_positive_int, None if isinstance(value, bool) else value, form))
    if number >= MOST:
        raise InvalidValue(form)
    return number


def shard_addresses(value: Any) -> tuple[str, ...]:
    """Parse the addresses of supervisors, an item for each shard with commas between its supervisors: a
    list, or text separated by blanks.
    """
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(
        isinstance(w, str) and all(map(_is_url, w.split(","))) for w in found
    ):
        raise InvalidValue(
            "must be addresses, one item for each shard with commas between its supervisors, as in"
            " 'https://a.example.org:8443,https://b.example.org:8443 https://c.example.org:8443'"
        )
    return tuple(found)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        plain = parts.hostname and not (parts.path or parts.query or parts.fragment)
        return bool(plain) and parts.scheme in ("http", "https") and parts.port is not None
    except ValueError:
        return False


def peers(value: Any) -> tuple[str, ...]:
    """Parse addresses, networks and unix users of this machine: a list, or text separated by commas
    or blanks.
    """
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(
        isinstance(w, str) and _is_peer(w) for w in given
    ):
        raise InvalidValue(
            "must be addresses, networks or unix users of this machine, separated by commas, as in 'www-data, 192.0.2.0/24'"
        )
    return tuple(given)


def _is_peer(word: str) -> bool:
    try:
        ipaddress.ip_network(word, strict=False)
    except ValueError:
        try:
            pwd.getpwnam(word)
        except KeyError:
            return False
    return True


def drivers(value: Any) -> tuple[str, ...]:
    """Parse names of drivers, each once: a list, or text separated by commas or blanks."""
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if (
        not isinstance(given, list | tuple)
        or not given
        or not all(w in DRIVERS for w in given)
        or len(set(given)) != len(given)
    ):
        raise InvalidValue(
            f"must be some of {', '.join(DRIVERS)}, each once, separated by commas; the first one is the default for runs"
        )
    return tuple(given)


def gpu_ids(value: Any) -> tuple[str, ...]:
    """Parse numbers or UUIDs of GPUs, each once: a list, or text separated by commas or blanks.
    "none" means no GPUs.
    """
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if given == ["none"]:
        return ()
    if not isinstance(given, list | tuple) or not all(
        isinstance(w, str | int) and _GPU.fullmatch(str(w)) for w in given
    ):
        raise InvalidValue(
            'must be numbers or UUIDs of GPUs, separated by commas, or "auto" or "none"'
        )
    names = tuple(map(str, given))
    if len(set(names)) != len(names) or ("auto" in names and len(names) > 1):
        raise InvalidValue('must name each GPU once, or be only "auto"')
    return names


def one_of(*choices: str) -> Parser:
    def parse(value: Any) -> str:
        if value not in choices:
            raise InvalidValue("must be one of " + ", ".join(choices))
        return str(value)

    return parse


def or_none(parser: Parser) -> Parser:
    """Return a parser that also accepts `none`."""

    def parse(value: Any) -> Any:
        if isinstance(value, str) and value.lower() in _NOTHING:
            return None
        try:
            return parser(value)
        except InvalidValue as e:
            raise InvalidValue(f"{e}, or none") from None

    return parse


def _by(parser: Parser, value: Any, form: str) -> Any:
    try:
        if value is None:
            raise InvalidValue(form)
        return parser(value)
    except (AssertionError, KeyError, ValueError, TypeError):
        raise InvalidValue(form) from None
