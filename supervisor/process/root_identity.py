"""The identity of a root, and whether all its parts belong to it. Everything is compared before a
supervisor writes or stops anything.

A root has a key, the random text in `secret/agents`. Its id is derived from the key. The id is in
the log, with each start; key, id and path are in `root.json`, which is for the owner only. Agents,
containers and the uid of the command line are named by the key, so a key that was removed or
replaced is put back from `root.json`. Nothing here knows what runs are.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...db.maintenance import file_replacement
from ...db.maintenance.checkpoints import identity
from ...db.maintenance.verification import store_path
from ...db.records.record_files import FOLDER as RECORDS
from ...db.sqlite.opening import missing, system_events
from ...drivers.keeper_lock import locked, owns
from ...protocol.errors import Refusal
from ...protocol.ids import base62, derived_id
from ...runtime import processes
from ...runtime.filesystems import make_folder, write_atomically
from .root_directory import RootDirectory

FILE = "root.json"
_KEY = "secret/agents"
ID_LENGTH = 12


class Card(msgspec.Struct, kw_only=True, rename="camel"):
    """What is in `root.json`. uid: of the command line. path: of the root at its last start. was:
    the id in the log before an adoption.
    """

    id: str
    key: str
    uid: str
    path: str
    was: str | None = None


def compare(held: RootDirectory) -> Card:
    """The identity to start with, after all parts were compared. Writes nothing. Raises Refusal:
    logMissing, copiedRoot, foreignParts.
    """
    card, notes = _compared(held.path)
    held.notes += notes
    return card


def problems(root: Path) -> list[str]:
    """Sentences about parts that do not belong together, for a person; [] where this process may
    not look.
    """
    try:
        _compared(root)
        return list(strangers(root))
    except Refusal as e:
        return [e.sentence]
    except OSError:
        return []


def _compared(root: Path) -> tuple[Card, list[str]]:
    """The identity, and sentences about what is to be put right."""
    card, key = read_card(root), _read_key(root)
    if missing(store_path(root)):
        _refuse_missing(root, card)
    _refuse_copy(root, card)
    for sentence in strangers(root):
        raise Refusal("copiedRoot", sentence)
    log = identity(system_events(store_path(root)) or [])
    if card is None:
        own = None if key is None else _id(key)
        if log.root_id not in (None, own) and not log.restored:
            what = "is missing" if key is None else "is not the one that this root was used with"
            raise Refusal(
                "foreignParts",
                (
                    f"{root / _KEY} {what}, and there is no {FILE} to take it from: its agents and containers would not be found."
                    f" Put {FILE} or {_KEY} back; or accept it: 'jobscribe --root {root} db adopt'"
                ),
            )
        key = key or _new_key()
        return Card(id=_id(key), key=key, uid=_uid(key), path=str(root)), []
    if log.root_id not in (None, card.id, card.was) and not log.restored:
        raise Refusal(
            "foreignParts",
            (
                f"the log in {root / 'db'} is of another root ({log.root_id}) than {FILE} and {_KEY} ({card.id}). Put the right log back;"
                f" or take it as a backup: move {root / 'db'} to DIR, then 'jobscribe --root {root} db restore DIR'"
            ),
        )
    what = "missing" if key is None else "another one"
    notes = (
        []
        if key == card.key
        else [f"{root / _KEY} was {what}: the key of this root was put back from {FILE}"]
    )
    return msgspec.structs.replace(card, path=str(root)), notes


def write_key(root: Path, card: Card) -> None:
    """Make the key durable, where it is not there. Raises OSError."""
    if _read_key(root) != card.key:
        make_folder(str((root / _KEY).parent))
        write_atomically(str(root / _KEY), card.key.encode(), sync=True)


def keep(root: RootDirectory, card: Card) -> None:
    """Keep card and key from now on. Not before there is a durable log: a card without a log means
    that the log was lost.
    """
    root.keep(FILE, msgspec.json.encode(card))
    root.keep(_KEY, card.key.encode())


def read_card(root: Path) -> Card | None:
    """None where there is none that can be read."""
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=Card)
    except (OSError, msgspec.DecodeError):
        return None


def strangers(root: Path) -> Iterator[str]:
    """A sentence for each agent folder whose keeper or jobs live and belong to another folder."""
    for folder in sorted((root / "agent").glob("local.*")):
        said = _json(folder / "keeper.json")
        elsewhere, pid = said.get("folder") not in (None, os.path.realpath(folder)), _alive(said)
        if pid is not None and elsewhere and locked(folder):
            yield f"{folder} was moved from {said['folder']} while its keeper runs: move it back, or end keeper and jobs: kill {pid}"
        elif pid is not None and not owns(folder, said["startTicks"], said.get("folder")):
            yield f"{folder} is a copy: its keeper, pid {pid}, {_of(said)} and runs there. {_remedy(root)}"
        elif elsewhere and (job := _live_job(folder)):
            yield f"{folder} is a copy: its job with pid {job} {_of(said)} and runs there. {_remedy(root)}"


# ---- for an operator


class Adopted(msgspec.Struct, kw_only=True, rename="camel"):
    """root_id: the new identity. agents_aside: where the folders of the agents are now, which are
    the original's.
    """

    root_id: str
    agents_aside: str | None = None


def adopt(root: Path) -> Adopted:
    """Make this folder a root of its own, whatever its parts are of. Its supervisor is stopped.
    Raises Refusal: logMissing, badRequest.
    """
    if missing(store_path(root)):
        raise Refusal(
            "logMissing",
            f"there is no log in {root / 'db'}; 'jobscribe --root {root} db init --accept-loss' begins a new one",
        )
    events = system_events(store_path(root))
    if events is None:
        raise Refusal(
            "storeDamaged",
            f"the log in {root / 'db'} cannot be read: 'jobscribe --root {root} db check' says why",
        )
    card, key, aside = read_card(root), _read_key(root), None
    if _original(root, card) is not None or any(strangers(root)):
        key = _new_key()
        aside = _put_aside(root / "agent", "adopt") if (root / "agent").exists() else None
    key = key or _new_key()
    uid = card.uid if card is not None else _uid(_read_key(root) or key)
    made = Card(id=_id(key), key=key, uid=uid, path=str(root), was=identity(events).root_id)
    write_atomically(str(root / FILE), msgspec.json.encode(made), sync=True)
    write_key(root, made)
    return Adopted(root_id=_id(key), agents_aside=None if aside is None else str(aside))


def init(root: Path) -> Path | None:
    """Begin an empty log where the log is lost. Returns where the records of the lost jobs are.
    Raises Refusal: badRequest, rootBusy.
    """
    from ...db.maintenance.backup import begin

    if not missing(store_path(root)):
        raise Refusal(
            "badRequest", f"there is a log in {root / 'db'}; it is not replaced by an empty one"
        )
    begin(root)
    return _put_aside(root / RECORDS, "init") if (root / RECORDS).exists() else None


def _put_aside(folder: Path, doing: str) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.before-{doing}-{number}")).exists():
        number += 1
    shutil.move(folder, aside)
    file_replacement.sync(folder.parent)
    return aside


# ---- inside


def _refuse_missing(root: Path, card: Card | None) -> None:
    agents = sum(1 for _ in (root / "agent").glob("*/run"))
    records = sum(1 for _ in (root / RECORDS).glob("*-*-*.json"))
    if card is None and not agents and not records:
        return  # nothing was ever here
    there = (
        [FILE] * (card is not None)
        + [f"agents: {agents}"] * (agents > 0)
        + [f"records of jobs: {records}"] * (records > 0)
    )
    raise Refusal(
        "logMissing",
        (
            f"the log is missing: there is none in {root / 'db'}, but the root has other parts ({', '.join(there)}). Nothing was changed, and"
            f" jobs run on. Put {root / 'db'} back; or a backup: 'jobscribe --root {root} db restore BACKUP'; or accept that all is forgotten"
            f" and jobs that run are ended: 'jobscribe --root {root} db init --accept-loss'"
        ),
    )


def _original(root: Path, card: Card | None) -> Path | None:
    """The root of which this one is a copy, where it is still there."""
    if card is None or card.path == str(root):
        return None
    with contextlib.suppress(OSError):
        other = read_card(Path(card.path))
        if other is not None and other.id == card.id and not os.path.samefile(card.path, root):
            return Path(card.path)
    return None


def _refuse_copy(root: Path, card: Card | None) -> None:
    original = _original(root, card)
    if original is not None:
        raise Refusal(
            "copiedRoot",
            (
                f"the root {root} is a copy of {original}, which is still there: both would act on the same agents and jobs. {_remedy(root)}"
            ),
        )


def _remedy(root: Path) -> str:
    return (
        f"Start the original; or remove it; or make this copy a root of its own, which knows nothing of what runs there:"
        f" 'jobscribe --root {root} db adopt'"
    )


def _of(said: dict[str, Any]) -> str:
    return f"belongs to {said['folder']}" if said.get("folder") else "belongs to another root"


def _live_job(folder: Path) -> int | None:
    """The pid of an execution that its ledger has and that runs."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder / "ledger")):
            if (pid := _alive(_json(folder / "run" / name / "start.json"))) is not None:
                return pid
    return None


def _alive(said: dict[str, Any]) -> int | None:
    """The pid of a process that this describes and that runs."""
    pid, ticks = said.get("pid"), said.get("startTicks")
    there = (
        isinstance(pid, int)
        and isinstance(ticks, int)
        and said.get("bootId") == processes.boot_id()
        and processes.alive(pid, ticks)
    )
    return pid if there else None


def _json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


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
    """Of the unix user of this process, as the command line names him."""
    return derived_id(str(os.getuid()).encode(), key=hashlib.sha256(key.encode()).digest())[:8]
