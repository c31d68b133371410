"""Rules for image and volumes of a role's container that hold for every host. Pure.

Both are texts of users. Nothing here contacts a host or registry, or follows a path: the process
that creates the container resolves symbolic links at the start.
"""

import re
from collections.abc import Collection, Sequence

from ..fields import quoted

#: Form of an image name, for error messages.
IMAGE_FORM = "[registry[:port]/]name[:tag][@sha256:...], such as python:3.11 or registry.example.org:5000/team/solver:2"
VOLUME_FORM = (
    "the name of a volume of the pool, or the absolute path of a folder in your own directory"
)
MAX_VOLUMES = 100
_MAX_NAME, _MAX_PATH = 255, 4_095
_REGISTRY = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]{1,5})?"
)
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def image_problem(image: str) -> str | None:
    """Return why no registry or host can have an image of this name; None if one may."""
    if not image:
        return "it is empty"
    if bad := next((c for c in image if not c.isascii() or not c.isprintable() or c == " "), None):
        return f"it contains {quoted(bad)}"
    rest, at, digest = image.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return f"{quoted(digest)} after @ is not a digest: sha256: and 64 digits of 0-9a-f"
    # a colon after the last slash starts the tag, an earlier one a port
    name, colon, tag = rest.rpartition(":") if ":" in rest.rpartition("/")[2] else (rest, "", "")
    if colon and not _TAG.fullmatch(tag):
        return (
            f"{quoted(tag)} is not a tag: letters, digits and . _ -, not . or - first, at most 128"
        )
    return _name_problem(name)


def _name_problem(name: str) -> str | None:
    first, slash, others = name.partition("/")
    registry = slash and (first == "localhost" or any(c in ".:" or c.isupper() for c in first))
    if registry and not _REGISTRY.fullmatch(first):
        return f"{quoted(first)} is not a registry: a host, optionally with :port"
    if len(name) > _MAX_NAME:
        return f"its name has {len(name)} characters; the limit is {_MAX_NAME}"
    for part in (others if registry else name).split("/"):
        if part != part.lower():
            return f"{quoted(part)} has capital letters, which image names cannot have"
        if not _PART.fullmatch(part):
            right = "small letters and digits, with . _ or - between them"
            return (
                f"{quoted(part)} is not a valid part of a name: {right}"
                if part
                else "a part of its name is empty"
            )
    return None


def volume_problem(volume: str) -> str | None:
    """Return why this is neither a volume name nor a path that may be mounted; None if it is."""
    if "\0" in volume:
        return "it contains a NUL"
    if not volume.startswith("/"):
        if "/" in volume or volume in ("", ".", ".."):
            return "it is a relative path" if volume else "it is empty"
        return (
            None
            if _VOLUME.fullmatch(volume)
            else "it is not a volume name: letters, digits and . _ -, at most 63"
        )
    if len(volume.encode("utf-8", "replace")) > _MAX_PATH:
        return f"it has more than {_MAX_PATH} bytes"
    if ".." in volume.split("/"):
        return "it contains `..`"
    if not volume.isprintable() or ":" in volume:
        return "it contains a colon, or an unprintable character"
    return None


def first_duplicate(volumes: Sequence[str]) -> str | None:
    """Return the first duplicate; paths that differ only in redundant slashes are equal."""
    seen: set[str] = set()
    for volume in volumes:
        if (plain := plain_path(volume)) in seen:
            return volume
        seen.add(plain)
    return None


def plain_path(volume: str) -> str:
    """Remove redundant slashes and dots of a path. A name is unchanged."""
    return (
        "/" + "/".join(p for p in volume.split("/") if p not in ("", "."))
        if volume.startswith("/")
        else volume
    )


def volume_refusal(volume: str, names: Collection[str], user_dir: str) -> str | None:
    """Return why the user with this directory cannot mount this volume of a pool with these volume
    names; None if the user can.
    """
    known = f"there are: {', '.join(sorted(names))}" if names else "this site has none"
    if not volume.startswith("/"):
        return None if volume in names else f"there is no volume of this name; {known}"
    path, own = plain_path(volume), plain_path(user_dir)
    if own not in ("", "/") and (path == own or path.startswith(f"{own}/")):
        return None
    return f"it is not in your own directory, {user_dir}; other folders are available only as named volumes; {known}"
