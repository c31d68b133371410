"""Who we are to the registries of images: the names of images taken apart, and the file with the
credentials.

The file is read each time it is needed. What is in it goes to the daemon that pulls and to the
log's redactor, and nowhere else.
"""

import base64
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: the registry of images whose names do not say one
PUBLIC = "docker.io"


class BadCredentials(Exception):
    """The file cannot be used. sentence: why, and what to do; nothing of its content."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class ImageName:
    """registry: host or host:port. repository: as the daemon wants it, with the registry. wanted:
    its tag or, after the @, its digest.
    """

    registry: str
    repository: str
    wanted: str


def parse_image(image: str) -> ImageName | None:
    """None for what is no image's name, e.g. the bare id of one, which no registry knows."""
    rest, _, digest = image.partition("@")
    path, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    first = rest.partition("/")[0]
    registry = first if slash and ("." in first or ":" in first or first == "localhost") else PUBLIC
    if not last or last == "sha256" or any(c.isspace() or c in "?#&" for c in image):
        return None
    # with a digest the tag says nothing; without either all tags would be pulled
    return ImageName(registry, f"{path}{slash}{last}", digest or tag or "latest")


def problems(file: str | None) -> list[str]:
    """What is wrong with the file of credentials, for a person; none: it can be used, or none is
    needed.
    """
    try:
        _read(file)
    except BadCredentials as e:
        return [e.sentence]
    return []


def auth_header(file: str | None, registry: str, secret: Callable[[str], object]) -> str | None:
    """The value of X-Registry-Auth for this registry; None: nobody in particular. secret: is told
    what must never be shown.

    Raises BadCredentials.
    """
    known = _read(file).get(registry)
    if known is None:
        return None
    secret(known["password"])
    said = {"username": known["username"], "password": known["password"], "serveraddress": registry}
    header = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
    secret(header)
    return header


def _read(file: str | None) -> dict[str, dict[str, str]]:
    if file is None:
        return {}
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as f:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise BadCredentials(
                    f"the credentials of registries, {file}, are no file; name one in `registries` of the pool file"
                )
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadCredentials(
                    f"others can read {file}, where passwords of registries are; 'chmod 600' it, and change them"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise BadCredentials(
                    f"{file}, where passwords of registries are, belongs to another user; 'chown' it to the supervisor's"
                )
            content = f.read(1 << 20)
    except OSError as e:
        raise BadCredentials(
            f"{file} with the passwords of registries cannot be read ({e.strerror}); correct `registries`"
        ) from None
    return _parsed(file, content)


def _parsed(file: str, content: bytes) -> dict[str, dict[str, str]]:
    form = '{"registry.example.org": {"username": "...", "password": "..."}}'
    try:
        said: Any = json.loads(content)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not all(_is_login(v) for v in said.values()):
        # not a word of what stands there: it may be a password with a quote forgotten
        raise BadCredentials(
            f"the credentials of registries in {file} are not of the form {form}; correct the file"
        )
    return said


def _is_login(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"username", "password"}
        and all(isinstance(v, str) for v in value.values())
    )
