"""What is on disk of a user's tasks on one host: who was launched, what is owed, how each ended.
Everything here blocks.

    <root>/agent/<place>/ledger/<name>/   ours alone: one folder per task that is not settled, or whose container is kept
        task.json, container.json         what it was asked for; the id of its container, written before that is started
        stop.json, exit.json, settled     that it is to end, and why; how it ended; that this is durable elsewhere
    <root>/agent/<place>/run/<name>/      its evidence (see runtime.evidence), the user's; making it consumes the fencing token

A user's code can write to the evidence, so that is written anew and never through what lies there,
and nothing is believed that is only there, but the exit code and what the task says of itself.
"""

import contextlib
import json
import os
import secrets
import shutil
from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ....protocol.ids import Token, parse_token
from ....protocol.jobs.exit_info import ExitInfo
from ....runtime.execution.folder import EXIT, STOP, read_json
from ....runtime.filesystems import sync_folder, write_atomically

TASK, CONTAINER, SETTLED = "task.json", "container.json", "settled"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What has to be known of a task after a restart. network: the bridge of its gang."""

    token: str
    run_dir: str
    limit: float | None = None
    grace: float = 3.0
    keep: bool = False
    network: str | None = None


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """signaled: a signal was about to be sent; notes of an older version do not say so."""

    reason: str
    grace: float
    signaled: bool = True


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the ledger. settled: the container may go at that time (unix seconds); None: it
    is not settled.
    """

    token: Token
    asked: Asked
    container: str | None = None
    stop: Stop | None = None
    exit: ExitInfo | None = None
    settled: float | None = None


class ContainerLedger:
    """Of one place. Its folder is the supervisor's; nothing in it but a task's own evidence is seen
    by a container.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.runs, self.ledger = f"{self.folder}/run", f"{self.folder}/ledger"

    def make(self) -> None:
        for path in (self.folder, self.runs, self.ledger):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def evidence(self, token: Token) -> str:
        return f"{self.runs}/{token.name}"

    def take(self, asked: Asked, token: Token) -> bool:
        """From here on this token counts as launched; False: it was before. Raises OSError. Call
        `sync` before its container is made.
        """
        entry = f"{self.ledger}/{token.name}"
        try:
            os.mkdir(entry, 0o700)
        except FileExistsError:
            return False
        try:
            self._write(token, TASK, msgspec.to_builtins(asked))
            os.mkdir(self.evidence(token), 0o700)
        except OSError as e:
            shutil.rmtree(entry)
            if isinstance(e, FileExistsError):
                return False
            raise
        return True

    def sync(self) -> None:
        sync_folder(self.ledger)
        sync_folder(self.runs)

    def note_container(self, token: Token, id_: str) -> None:
        self._write(token, CONTAINER, {"id": id_}, sync=True)

    def note_stop(self, token: Token, stop: Stop, mark: str | None = None) -> None:
        """With the mark for its wrapper before the first signal. Of its evidence nothing is left
        where it wants that.
        """
        self._write(token, STOP, msgspec.to_builtins(stop), sync=True)
        if mark is not None:
            with contextlib.suppress(OSError):
                put(self.evidence(token), mark, b"")

    def withdraw_stop(self, token: Token) -> None:
        """The stop came after the exit."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.ledger}/{token.name}/{STOP}")

    def note_exit(self, token: Token, exit_: ExitInfo) -> None:
        """For us, then for readers."""
        said = {k: v for k, v in msgspec.to_builtins(exit_).items() if v is not None}
        self._write(token, EXIT, said, sync=True)
        with contextlib.suppress(OSError):
            put(self.evidence(token), EXIT, json.dumps(said).encode())

    def settle(self, token: Token, until: float) -> None:
        self._write(token, SETTLED, {"until": until})

    def settled_until(self, token: Token) -> float | None:
        """None: it is not settled. One that is not in the ledger is settled since ever."""
        entry = self._entry(token.name) if os.path.isdir(f"{self.ledger}/{token.name}") else None
        return 0.0 if entry is None else entry.settled

    def strike(self, token: Token) -> None:
        """Nothing of it is left anywhere but its evidence."""
        shutil.rmtree(f"{self.ledger}/{token.name}", ignore_errors=True)

    def give_back(self, token: Token) -> None:
        """It was taken, and nothing was made of it. What says so goes last."""
        shutil.rmtree(self.evidence(token), ignore_errors=True)
        self.strike(token)

    def entries(self) -> list[LedgerEntry]:
        """All of the ledger, in order of names. One that was not finished was never launched: it is
        taken away.
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
            asked = msgspec.convert(read_json(f"{folder}/{TASK}"), Asked)
            token = parse_token(asked.token)
        except (msgspec.ValidationError, Refusal):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        os.makedirs(
            self.evidence(token), mode=0o700, exist_ok=True
        )  # it is used, whatever became of it
        stop, exit_, settled = (read_json(f"{folder}/{n}") for n in (STOP, EXIT, SETTLED))
        return LedgerEntry(
            token=token,
            asked=asked,
            container=(read_json(f"{folder}/{CONTAINER}") or {}).get("id"),
            stop=None if stop is None else msgspec.convert(stop, Stop),
            exit=None if exit_ is None else msgspec.convert(exit_, ExitInfo),
            settled=None if settled is None else float(settled["until"]),
        )

    def _write(self, token: Token, name: str, said: dict[str, Any], *, sync: bool = False) -> None:
        write_atomically(f"{self.ledger}/{token.name}/{name}", json.dumps(said).encode(), sync=sync)


def put(folder: str, name: str, data: bytes, mode: int = 0o600) -> None:
    """Create or replace a file in a folder that belongs to a user: whatever is there is neither
    followed nor waited for. Raises OSError.
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


def make_below(top: str, path: str, owner: tuple[int, int]) -> None:
    """Make the folders from `top` (which is there) to `path`, each the owner's. Raises OSError,
    also where a link is in the way.
    """
    fd = os.open(top, _FOLDER)
    try:
        for part in os.path.relpath(path, top).split("/"):
            try:
                os.mkdir(part, 0o700, dir_fd=fd)
                made = True
            except FileExistsError:
                made = False
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            if made and os.geteuid() == 0:
                os.fchown(fd, *owner)
    finally:
        os.close(fd)
