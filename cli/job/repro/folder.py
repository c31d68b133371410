"""Writes a repro folder: files for its owner only, and input files copied from the run directory."""

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ....client.api.errors import ClientError
from ....client.sync_client import Client
from ....protocol.errors import Refusal
from ....schema.jobs.withheld import looks_secret
from ...session.session import Session

INPUTS = "inputs"
#: Files with one of these beginnings or endings are not copied.
_KEY_FILES = (".pem", ".key", ".p12", ".pfx", ".jks", ".kdbx")
_LOGIN_FILES = ("id_rsa", "id_ed25519", "id_ecdsa", ".netrc", ".env", ".pgpass", ".git-credentials")
#: Larger files are not searched for secrets: programs write them.
_SEARCHED_BYTES = 2**20
_BLOCK = 2**20


class Inputs(NamedTuple):
    """copied: name, size and SHA-256 of each copied file. missing: name and reason of the others."""

    copied: list[dict[str, Any]]
    missing: list[dict[str, str]]


def create(path: str) -> bool:
    """Create the folder for its owner only; return whether it is new. Raises Refusal if it exists
    with content or cannot be created.
    """
    try:
        return _create(path)
    except OSError as e:
        raise Refusal("badRequest", f"{path} cannot be created: {e.strerror}") from None


def _create(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
        return True
    except FileExistsError:
        if not os.path.isdir(path) or os.path.islink(path) or os.listdir(path):
            raise Refusal(
                "badRequest", f"{path} exists; choose another folder with -o, or remove it"
            ) from None
        os.chmod(path, 0o700)
        return False


def write(folder: str, files: Mapping[str, str | bytes]) -> None:
    """Write new files, mode 0600; scripts 0700."""
    for name, content in files.items():
        mode = 0o700 if name.endswith(".sh") else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(os.path.join(folder, name), flags, mode)
        with os.fdopen(fd, "wb") as f:
            f.write(content.encode() if isinstance(content, str) else content)


def copy_inputs(
    s: Session, client: Client, jid: str, found: Sequence[dict[str, Any]], folder: str, limit: int
) -> Inputs:
    """Copy files of the run directory to `inputs` without those that look like secrets, up to
    `limit` bytes.
    """
    target = os.path.join(folder, INPUTS)
    os.mkdir(target, 0o700)
    out = Inputs([], [])
    chosen, size = [], 0
    for file in found:
        if _sounds_secret(file["name"]):
            out.missing.append({"name": file["name"], "why": "its name is that of a secret"})
        elif size + file["size"] > limit:
            out.missing.append({"name": file["name"], "why": f"it has {file['size']} bytes"})
        else:
            chosen.append(file["name"])
            size += file["size"]
    begun = time.monotonic()

    def progress(count: int, files: int) -> None:
        text = f"{files} of {len(chosen)} input files, {count} of {size} bytes copied"
        s.screen.progress(text, time.monotonic() - begun)

    try:
        copies = client.get_files(jid, chosen, target, on_progress=progress) if chosen else []
    except ClientError as e:
        out.missing.append({"name": "*", "why": e.sentence})
        shutil.rmtree(target)
        os.mkdir(target, 0o700)
        return out
    for done in copies:
        if done.code:
            out.missing.append({"name": done.name, "why": done.error or done.code})
        else:
            _settle(os.path.join(target, done.name), done.name, out)
    _keep_only(target, {row["name"] for row in out.copied})
    return out


def discard(path: str, new: bool) -> None:
    """Remove the content of an incomplete folder, and the folder if it was created."""
    if new:
        shutil.rmtree(path, ignore_errors=True)
        return
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def listing(folder: str) -> list[dict[str, Any]]:
    """Return name, size and SHA-256 of all files in the folder."""
    names = sorted(
        os.path.relpath(os.path.join(directory, name), folder)
        for directory, _, files in os.walk(folder)
        for name in files
    )
    return [_row(os.path.join(folder, name), name) for name in names]


def _keep_only(target: str, names: set[str]) -> None:
    """Remove other files, such as the parts of incomplete copies: nobody searched them for secrets."""
    for directory, _, files in os.walk(target):
        os.chmod(directory, 0o700)
        for file in files:
            path = os.path.join(directory, file)
            if os.path.relpath(path, target) not in names:
                os.unlink(path)


def _settle(path: str, name: str, out: Inputs) -> None:
    """Keep a copied file, or remove it if it has a secret."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return
    os.chmod(path, 0o600)
    if _has_secret(path):
        os.unlink(path)
        out.missing.append({"name": name, "why": "it has a value that looks like a secret"})
        return
    out.copied.append(_row(path, name))


def _row(path: str, name: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as f:
        while block := f.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return {"name": name, "bytes": size, "sha256": digest.hexdigest()}


def _sounds_secret(name: str) -> bool:
    from ....protocol.redaction import is_secret

    last = name.rpartition("/")[2].lower()
    return last.endswith(_KEY_FILES) or last.startswith(_LOGIN_FILES) or is_secret(last, "x")


def _has_secret(path: str) -> bool:
    if os.path.getsize(path) > _SEARCHED_BYTES:
        return False
    with open(path, "rb") as f:
        data = f.read()
    return (b"-----BEGIN " in data and b"PRIVATE KEY-----" in data) or looks_secret(_text(data))


def _text(data: bytes) -> str:
    """Return text that may have a secret; of a binary file, only its API tokens matter."""
    text = data.decode("utf-8", "replace")
    if b"\0" not in data:
        return text
    return "\n".join(word for word in text.split() if word.startswith("jst_"))
