"""The records on disk of a user's tasks on one host: launches, stops and exits. Functions block.

    <root>/agent/<place>/ledger/<name>/   private: a folder per task that is not acknowledged, or whose container is kept
        task.json, container.json         the request; the id of the container, written before the start
        stop.json, exit.json, settled     the stop and its reason; the exit; the acknowledgement that the exit is durable
        ssh/                              keys of its attempt, readable for its user, mounted into the container
    <root>/agent/<place>/run/<name>/      the evidence (see runtime.execution), owned by the user; creating it uses the token

A user's code can write to the evidence folder. So files there are replaced, never opened for
writing, and only the exit code and the task's own reports are read from there.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ....protocol.ids import Token, parse_token
from ....protocol.jobs.exit_info import ExitInfo
from ....runtime.execution.folder import EXIT, STOP, read_json
from ....runtime.filesystems import sync_folder, write_atomically

TASK, CONTAINER, SETTLED, SSH = "task.json", "container.json", "settled", "ssh"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The facts about a task that a restart needs. network: the bridge of its gang."""

    token: str
    run_dir: str
    limit: float | None = None
    grace: float = 3.0
    keep: bool = False
    network: str | None = None


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A requested stop. signaled: a signal was sent or about to be sent; records of older versions
    lack the field.
    """

    reason: str
    grace: float
    signaled: bool = True


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the ledger. settled: unix seconds after which the container may be removed;
    None: not acknowledged yet.
    """

    token: Token
    request: TaskRequest
    container: str | None = None
    stop: Stop | None = None
    exit: ExitInfo | None = None
    settled: float | None = None


class ContainerLedger:
    """The ledger of one place. Its folder belongs to the supervisor; containers see only the
    evidence folder of their own task.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.runs, self.ledger = f"{self.folder}/run", f"{self.folder}/ledger"

    def make(self) -> None:
        for path in (self.folder, self.runs, self.ledger):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def evidence(self, token: Token) -> str:
        return f"{self.runs}/{token.name}"

    def take_token(self, request: TaskRequest, token: Token) -> bool:
        """Record that this token is launched. Return False if it was launched before. Raises
        OSError. Call `sync` before the container is created.
        """
        entry = f"{self.ledger}/{token.name}"
        try:
            os.mkdir(entry, 0o700)
        except FileExistsError:
            return False
        try:
            self._write(token, TASK, msgspec.to_builtins(request))
            os.mkdir(self.evidence(token), 0o700)
        except OSError as e:
            shutil.rmtree(entry)
            if isinstance(e, FileExistsError):
                return False
            raise
        return True

    def ssh_folder(self, token: Token) -> str:
        """Return the folder with the ssh files of a task. It goes with the entry."""
        return f"{self.ledger}/{token.name}/{SSH}"

    def write_ssh(self, token: Token, files: Mapping[str, str], owner: tuple[int, int]) -> None:
        """Write the ssh files of a task, which only its user can read: all of them or none. Raises
        OSError.
        """
        folder = f"{self.ssh_folder(token)}.part"
        os.mkdir(folder, 0o700)
        for name, text in files.items():
            replace_file(folder, name, text.encode())
            if os.geteuid() == 0:
                os.chown(f"{folder}/{name}", *owner, follow_symlinks=False)
        if os.geteuid() == 0:
            os.chown(folder, *owner, follow_symlinks=False)
        os.rename(folder, self.ssh_folder(token))

    def ssh_of_attempt(self, token: Token) -> dict[str, str] | None:
        """Return the ssh files of any task of this attempt; None if no task has them."""
        attempt = f"{token.jid}-{token.serial}-{token.attempt}-"
        for name in sorted(n for n in os.listdir(self.ledger) if n.startswith(attempt)):
            folder = Path(self.ledger, name, SSH)
            if folder.is_dir():
                return {path.name: path.read_text() for path in folder.iterdir()}
        return None

    def sync(self) -> None:
        sync_folder(self.ledger)
        sync_folder(self.runs)

    def note_container(self, token: Token, id_: str) -> None:
        self._write(token, CONTAINER, {"id": id_}, sync=True)

    def note_stop(self, token: Token, stop: Stop, mark: str | None = None) -> None:
        """Record the stop, and optionally create the mark for the init script before the first
        signal. A missing evidence folder is no error.
        """
        self._write(token, STOP, msgspec.to_builtins(stop), sync=True)
        if mark is not None:
            with contextlib.suppress(OSError):
                replace_file(self.evidence(token), mark, b"")

    def withdraw_stop(self, token: Token) -> None:
        """Remove the record of a stop that came after the exit."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.ledger}/{token.name}/{STOP}")

    def note_exit(self, token: Token, exit_: ExitInfo) -> None:
        """Record the exit in the ledger, then in the evidence folder."""
        content = {k: v for k, v in msgspec.to_builtins(exit_).items() if v is not None}
        self._write(token, EXIT, content, sync=True)
        with contextlib.suppress(OSError):
            replace_file(self.evidence(token), EXIT, json.dumps(content).encode())

    def settle(self, token: Token, until: float) -> None:
        self._write(token, SETTLED, {"until": until})

    def settled_until(self, token: Token) -> float | None:
        """Return the time of removal, or None if the task is not acknowledged. A task without a
        ledger entry counts as acknowledged long ago.
        """
        entry = self._entry(token.name) if os.path.isdir(f"{self.ledger}/{token.name}") else None
        return 0.0 if entry is None else entry.settled

    def remove_entry(self, token: Token) -> None:
        """Remove the ledger entry. Only the evidence remains."""
        shutil.rmtree(f"{self.ledger}/{token.name}", ignore_errors=True)

    def release_token(self, token: Token) -> None:
        """Release a token that was taken, but not used. The ledger entry is removed last."""
        shutil.rmtree(self.evidence(token), ignore_errors=True)
        self.remove_entry(token)

    def container(self, token: Token) -> str | None:
        """Return the id of the container of a task whose entry exists."""
        id_ = (read_json(f"{self.ledger}/{token.name}/{CONTAINER}") or {}).get("id")
        return None if id_ is None else str(id_)

    def entries(self) -> list[LedgerEntry]:
        """Return all entries, ordered by name. An incomplete entry was never launched and is
        removed.
        """
        out = []
        for name in sorted(os.listdir(self.ledger)):
            entry = self._entry(name)
            if entry is not None:
                out.append(entry)
        return out

    def _entry(self, name: str) -> LedgerEntry | None:
        folder = f"{self.ledger}/{name}"
        try:
            request = msgspec.convert(read_json(f"{folder}/{TASK}"), TaskRequest)
            token = parse_token(request.token)
        except (msgspec.ValidationError, Refusal):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        # The token is used, even if the folder was deleted.
        if not os.path.lexists(self.evidence(token)):
            os.makedirs(self.evidence(token), mode=0o700, exist_ok=True)
        stop, exit_, settled = (read_json(f"{folder}/{n}") for n in (STOP, EXIT, SETTLED))
        return LedgerEntry(
            token=token,
            request=request,
            container=(read_json(f"{folder}/{CONTAINER}") or {}).get("id"),
            stop=None if stop is None else msgspec.convert(stop, Stop),
            exit=None if exit_ is None else msgspec.convert(exit_, ExitInfo),
            settled=None if settled is None else float(settled["until"]),
        )

    def _write(
        self, token: Token, name: str, content: dict[str, Any], *, sync: bool = False
    ) -> None:
        write_atomically(
            f"{self.ledger}/{token.name}/{name}", json.dumps(content).encode(), sync=sync
        )


def replace_file(folder: str, name: str, data: bytes, mode: int = 0o600) -> None:
    """Create or replace a file in a folder that a user owns. An existing link or pipe is neither
    followed nor opened. Raises OSError.
    """
    above = os.open(folder, _FOLDER)
    try:
        temporary = f".{name}.{secrets.token_hex(8)}"
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            mode,
            dir_fd=above,
        )
        try:
            owner = os.fstat(above)
            if owner.st_uid != os.geteuid():
                os.fchown(fd, owner.st_uid, owner.st_gid)
            with open(fd, "wb", closefd=False) as f:
                f.write(data)
        finally:
            os.close(fd)
        try:
            os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
        except IsADirectoryError:
            os.rename(name, f"{temporary}.was", src_dir_fd=above, dst_dir_fd=above)
            os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=above)
        raise
    finally:
        os.close(above)


def make_folders_below(top: str, path: str, owner: tuple[int, int]) -> None:
    """Create the folders from `top` (which exists) to `path`, each with this owner. Raises OSError,
    also for a symbolic link in the path.
    """
    fd = os.open(top, _FOLDER)
    try:
        for part in os.path.relpath(path, top).split("/"):
            try:
                os.mkdir(part, 0o700, dir_fd=fd)
                created = True
            except FileExistsError:
                created = False
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            if created and os.geteuid() == 0:
                os.fchown(fd, *owner)
    finally:
        os.close(fd)
