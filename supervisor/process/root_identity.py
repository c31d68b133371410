"""The identity of a root, and the check that all its parts belong to it. The check runs before the
supervisor writes or stops anything.

The key of a root is the random text in `secret/agents`; the id is derived from it. Each start
writes the id to the log. Key, id and path are in `root.json`, which only the owner can read. Names
of agents and containers and the uid of the command line depend on the key, so a missing or replaced
key is restored from `root.json`. This module knows nothing about runs.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...db.maintenance import file_replacement
from ...db.maintenance.checkpoints import identity
from ...db.maintenance.log_source import store_path
from ...db.records.record_files import FOLDER as RECORDS
from ...db.sqlite.opening import never_used, system_events
from ...drivers.keeper_lock import locked, owns
from ...protocol.errors import Refusal
from ...protocol.ids import base62, derived_id
from ...runtime import processes
from ...runtime.execution import keeper_ledger
from ...runtime.filesystems import make_folder, write_atomically
from .event_log import EventLog, address_of
from .root_directory import RootDirectory

FILE = "root.json"
_KEY = "secret/agents"
ID_LENGTH = 12


class RootIdentity(msgspec.Struct, kw_only=True, rename="camel"):
    """Content of `root.json`. uid: user id that the command line uses. path: path of the root at
    its last start. was: id in the log before an adoption.
    """

    id: str
    key: str
    uid: str
    path: str
    was: str | None = None


class _Process(msgspec.Struct, frozen=True, rename="camel"):
    """The process that `keeper.json` or a keeper's ledger names. folder: of a keeper's agent."""

    pid: int
    start_ticks: int
    boot_id: str
    folder: str | None = None

    @property
    def alive(self) -> bool:
        return self.boot_id == processes.boot_id() and processes.alive(self.pid, self.start_ticks)


def compare(held: RootDirectory, log: EventLog | None = None) -> RootIdentity:
    """Compare all parts and return the identity for this start. Writes nothing. Raises Refusal:
    logMissing, copiedRoot, foreignParts.
    """
    record, notes = _compare(held.path, log or EventLog(held.path))
    held.notes += notes
    return record


def problems(root: Path) -> list[str]:
    """Return sentences about parts that do not belong together; empty if this process may not read
    them.
    """
    try:
        if address_of(root) is None:
            _compare(root, EventLog(root))
        return list(foreign_agents(root))
    except Refusal as e:
        return [e.sentence]
    except OSError:
        return []


def _compare(root: Path, parts: EventLog) -> tuple[RootIdentity, list[str]]:
    """Return the identity, and sentences about files to repair."""
    record, key = read_identity(root), _read_key(root)
    if parts.never_used():
        _refuse_missing(root, record)
    _refuse_copy(root, record)
    for sentence in foreign_agents(root):
        raise Refusal("copiedRoot", sentence)
    log = identity(parts.system_events() or [])
    if record is None:
        own = None if key is None else _id(key)
        if log.root_id not in (None, own) and not log.restored:
            what = "is missing" if key is None else "is not the key of this root"
            raise Refusal(
                "foreignParts",
                (
                    f"{root / _KEY} {what}, and there is no {FILE} to restore it from: the supervisor would not"
                    f" find its agents and containers. Put {FILE} or {_KEY} back; or accept the loss:"
                    f" 'jobscribe --root {root} db adopt'"
                ),
            )
        key = key or _new_key()
        return RootIdentity(id=_id(key), key=key, uid=_uid(key), path=str(root)), []
    if log.root_id not in (None, record.id, record.was) and not log.restored:
        raise Refusal(
            "foreignParts",
            (
                f"the log in {root / 'db'} is of another root ({log.root_id}) than {FILE} and {_KEY} ({record.id})."
                f" Put the right log back; or use it as a backup: move {root / 'db'} to DIR, then"
                f" 'jobscribe --root {root} db restore DIR'"
            ),
        )
    what = "missing" if key is None else "replaced"
    notes = (
        []
        if key == record.key
        else [f"{root / _KEY} was {what}: the key of this root was restored from {FILE}"]
    )
    return msgspec.structs.replace(record, path=str(root)), notes


def write_key(root: Path, record: RootIdentity) -> None:
    """Write the key durably if it is missing. Raises OSError."""
    if _read_key(root) != record.key:
        make_folder(str((root / _KEY).parent))
        write_atomically(str(root / _KEY), record.key.encode(), sync=True)


def keep(root: RootDirectory, record: RootIdentity) -> None:
    """Keep `root.json` and key from now on. Call this only with a durable log: `root.json` without
    a log means that the log is lost.
    """
    root.keep(FILE, msgspec.json.encode(record))
    root.keep(_KEY, record.key.encode())


def read_identity(root: Path) -> RootIdentity | None:
    """Return the content of `root.json`, or None if it cannot be read."""
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=RootIdentity)
    except (OSError, msgspec.DecodeError):
        return None


def foreign_agents(root: Path) -> Iterator[str]:
    """Yield a sentence for each agent folder with a live keeper or job that belongs to another
    folder.
    """
    for folder in sorted((root / "agent").glob("local.*")):
        keeper = _process(folder / "keeper.json")
        if keeper is None:
            continue
        live, elsewhere = keeper.alive, keeper.folder not in (None, os.path.realpath(folder))
        there = f"belongs to {keeper.folder or 'another root'} and runs there. {_remedy(root)}"
        if live and elsewhere and locked(folder):
            yield f"{folder} was moved from {keeper.folder} while its keeper runs; move it back, or end keeper and jobs: kill {keeper.pid}"
        elif live and not owns(folder, keeper.start_ticks, keeper.folder):
            yield f"{folder} is a copy: its keeper, pid {keeper.pid}, {there}"
        elif elsewhere and (job := _live_job(folder)):
            yield f"{folder} is a copy: its job with pid {job} {there}"


# ---- operator commands


class Adopted(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of an adoption. root_id: the new identity. agents_aside: new path of the agents'
    folders, which belong to the original.
    """

    root_id: str
    agents_aside: str | None = None


def adopt(root: Path) -> Adopted:
    """Give this root its own identity, whatever its parts belong to. The supervisor must be
    stopped. Raises Refusal: logMissing, badRequest.
    """
    if never_used(store_path(root)):
        raise Refusal(
            "logMissing",
            f"there is no log in {root / 'db'}; to start a new log: 'jobscribe --root {root} db init --accept-loss'",
        )
    events = system_events(store_path(root))
    if events is None:
        raise Refusal(
            "storeDamaged",
            f"the log in {root / 'db'} cannot be read; to see why: 'jobscribe --root {root} db check'",
        )
    record, key, aside = read_identity(root), _read_key(root), None
    if _original(root, record) is not None or any(foreign_agents(root)):
        key = _new_key()
        aside = _move_aside(root / "agent", "adopt") if (root / "agent").exists() else None
    key = key or _new_key()
    uid = record.uid if record is not None else _uid(_read_key(root) or key)
    adopted = RootIdentity(
        id=_id(key), key=key, uid=uid, path=str(root), was=identity(events).root_id
    )
    write_atomically(str(root / FILE), msgspec.json.encode(adopted), sync=True)
    write_key(root, adopted)
    return Adopted(root_id=_id(key), agents_aside=None if aside is None else str(aside))


def init(root: Path) -> Path | None:
    """Start an empty log after the log was lost. Return the new path of the lost jobs' records.
    Raises Refusal: badRequest, rootBusy.
    """
    from ...db.maintenance.backup import create_empty_log

    if address_of(root) is None and not never_used(store_path(root)):
        raise Refusal(
            "badRequest", f"there is a log in {root / 'db'}; an empty log does not replace it"
        )
    create_empty_log(root)
    return _move_aside(root / RECORDS, "init") if (root / RECORDS).exists() else None


def _move_aside(folder: Path, doing: str) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.before-{doing}-{number}")).exists():
        number += 1
    shutil.move(folder, aside)
    file_replacement.sync(folder.parent)
    return aside


# ---- checks


def _refuse_missing(root: Path, record: RootIdentity | None) -> None:
    agents = sum(1 for _ in (root / "agent").glob("*/run"))
    records = sum(1 for _ in (root / RECORDS).glob("*-*-*.json"))
    if record is None and not agents and not records:
        return  # a new root
    there = (
        [FILE] * (record is not None)
        + [f"agents: {agents}"] * (agents > 0)
        + [f"records of jobs: {records}"] * (records > 0)
    )
    raise Refusal(
        "logMissing",
        (
            f"the log is missing in {root / 'db'}, but the root has other parts ({', '.join(there)})."
            f" Nothing was changed, and jobs continue. Put {root / 'db'} back; or restore a backup:"
            f" 'jobscribe --root {root} db restore BACKUP'; or forget all jobs and end the running ones:"
            f" 'jobscribe --root {root} db init --accept-loss'"
        ),
    )


def _original(root: Path, record: RootIdentity | None) -> Path | None:
    """Return the root that was copied to this one, if it still exists."""
    if record is None or record.path == str(root):
        return None
    with contextlib.suppress(OSError):
        other = read_identity(Path(record.path))
        if other is not None and other.id == record.id and not os.path.samefile(record.path, root):
            return Path(record.path)
    return None


def _refuse_copy(root: Path, record: RootIdentity | None) -> None:
    original = _original(root, record)
    if original is not None:
        raise Refusal(
            "copiedRoot",
            (
                f"the root {root} is a copy of {original}, which still exists: both would control the same agents"
                f" and jobs. {_remedy(root)}"
            ),
        )


def _remedy(root: Path) -> str:
    return (
        f"Start the original; or remove it; or give this copy its own identity, without the original's jobs:"
        f" 'jobscribe --root {root} db adopt'"
    )


def _live_job(folder: Path) -> int | None:
    """Return the pid of a live execution in the folder's ledger, or None."""
    with contextlib.suppress(OSError):
        for entry in keeper_ledger.load(str(folder)).entries.values():
            with contextlib.suppress(msgspec.ValidationError):
                job = msgspec.convert(entry.start, _Process)
                if job.alive:
                    return job.pid
    return None


def _process(path: Path) -> _Process | None:
    """Return the process that the file names, or None if it names none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Process)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _read_key(root: Path) -> str | None:
    try:
        return (root / _KEY).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _new_key() -> str:
    return base62(secrets.token_bytes(43), 43)


def _id(key: str) -> str:
    return derived_id(b"root", key=key.encode())[:ID_LENGTH]


def _uid(key: str) -> str:
    """Return the uid of this process's unix user, as the command line uses it."""
    return derived_id(str(os.getuid()).encode(), key=hashlib.sha256(key.encode()).digest())[:8]
