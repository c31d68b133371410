"""Credentials for image registries: parses image names and reads the credentials file.

The file is read each time. Its content goes to the pulling daemon and to the log's redactor, and
nowhere else.
"""

import base64
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....protocol.jobs.registry_login import PUBLIC, RegistryLogin


class BadCredentials(Exception):
    """The file cannot be used. sentence: the reason and its solution, without any of its
    content.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class ImageName:
    """registry: host or host:port. repository: with the registry, as the daemon expects it. wanted:
    the tag or, after the @, the digest.
    """

    registry: str
    repository: str
    wanted: str

    @property
    def full(self) -> str:
        """Return the name with its tag or digest."""
        return f"{self.repository}{'@' if ':' in self.wanted else ':'}{self.wanted}"


def parse_image(image: str) -> ImageName | None:
    """Parse an image name. Return None for other texts, such as a bare image id, which no registry
    knows.
    """
    rest, _, digest = image.partition("@")
    path, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    first = rest.partition("/")[0]
    registry = first if slash and ("." in first or ":" in first or first == "localhost") else PUBLIC
    if not last or last == "sha256" or any(c.isspace() or c in "?#&" for c in image):
        return None
    # A digest makes the tag irrelevant. Without either, the daemon would pull all tags.
    return ImageName(registry, f"{path}{slash}{last}", digest or tag or "latest")


def problems(file: str | None) -> list[str]:
    """Return the problems of the credentials file as sentences; empty if the file is usable or not
    configured.
    """
    try:
        _read(file)
    except BadCredentials as e:
        return [e.sentence]
    return []


def auth_header(file: str | None, registry: str, secret: Callable[[str], object]) -> str | None:
    """Return the value of X-Registry-Auth for this registry, or None for anonymous access. secret:
    called with each value that must never be shown.

    Raises BadCredentials.
    """
    known = _read(file).get(registry)
    if known is None:
        return None
    secret(known["password"])
    header = login_header(RegistryLogin(registry=registry, **known))
    secret(header)
    return header


def login_header(login: RegistryLogin) -> str:
    """Return the value of X-Registry-Auth, which contains the password."""
    content = {
        "username": login.username,
        "password": login.password,
        "serveraddress": login.registry,
    }
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def _read(file: str | None) -> dict[str, dict[str, str]]:
    if file is None:
        return {}
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as f:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise BadCredentials(
                    f"the registry credentials {file} are not a regular file; set `registries` of the pool file to one"
                )
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadCredentials(
                    f"other users can read the registry passwords in {file}; 'chmod 600' the file, and change the passwords"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise BadCredentials(
                    f"{file} with registry passwords belongs to another user; 'chown' it to the supervisor's user"
                )
            content = f.read(1 << 20)
    except OSError as e:
        raise BadCredentials(
            f"{file} with registry passwords cannot be read ({e.strerror}); correct `registries`"
        ) from None
    return _parse_credentials(file, content)


def _parse_credentials(file: str, content: bytes) -> dict[str, dict[str, str]]:
    form = '{"registry.example.org": {"username": "...", "password": "..."}}'
    try:
        credentials: Any = json.loads(content)
    except ValueError:
        credentials = None
    if not isinstance(credentials, dict) or not all(_is_login(v) for v in credentials.values()):
        # Quote nothing of the content: it may be a password with a missing quote.
        raise BadCredentials(
            f"the registry credentials in {file} do not have the form {form}; correct the file"
        )
    return credentials


def _is_login(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"username", "password"}
        and all(isinstance(v, str) for v in value.values())
    )
