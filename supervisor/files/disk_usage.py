"""The measured disk usage of users, compared with their quotas. Pure: no disk access; `disk_meter`
measures.

A user's files are in parts: a simulation (`heat/abcd1234`), a library (`heat/lib`), and the evidence
of executions (`evidence`). A part is measured alone when a run in it ends. After a restart only the
sum of a user is known until the user is measured again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from ...protocol.clusters.queues import Queues
from ...protocol.errors import Refusal
from .disk_walk import Size

#: Parts of a user that are kept one by one: the largest ones.
MAX_PARTS = 5_000
#: Largest parts in reports.
NAMED = 10
#: Name of the part with the evidence of a user's executions.
EVIDENCE = "evidence"
_MIB = 2**20


class UserDisk(msgspec.Struct, omit_defaults=True, rename="camel"):
    """plan: the last one that is known. rest: sizes that are in no part. measured_at: unix seconds
    of the last complete measurement. parts: by name.
    """

    plan: str | None = None
    rest: Size = Size()
    measured_at: float | None = None
    parts: dict[str, Size] = {}

    @property
    def total(self) -> Size:
        return sum(self.parts.values(), self.rest)

    @property
    def largest(self) -> list[tuple[str, int]]:
        """Return the names and sizes of the largest parts."""
        ordered = sorted(self.parts.items(), key=lambda item: (-item[1].bytes, item[0]))
        return [(name, size.bytes) for name, size in ordered[:NAMED]]


class Quota(msgspec.Struct, frozen=True):
    """In bytes; None: no limit."""

    soft: int | None = None
    hard: int | None = None

    def state(self, used: int) -> Literal["ok", "soft", "hard"]:
        if self.hard is not None and used >= self.hard:
            return "hard"
        return "soft" if self.soft is not None and used > self.soft else "ok"


class DiskUsage:
    """The disk usage of all users. user_root: their folders, for messages."""

    def __init__(self, queues: Queues, user_root: str) -> None:
        self._queues, self._user_root = queues, user_root
        self.users: dict[str, UserDisk] = {}
        #: bytes of uploads in progress
        self._uploading: dict[str, int] = {}
        #: usage of each user and the sum of all, kept up to date
        self._totals: dict[str, Size] = {}

    # ---- measurements

    def measured(self, uid: str, parts: Mapping[str, Size], rest: Size, at: float) -> None:
        """Record a measurement of everything that a user has."""
        kept = dict(sorted(parts.items(), key=lambda item: -item[1].bytes)[:MAX_PARTS])
        for name, size in parts.items():
            if name not in kept:
                rest += size
        user = self._user(uid)
        user.parts, user.rest, user.measured_at = kept, rest, at
        self._changed(uid)

    def measured_part(self, uid: str, part: str, size: Size) -> bool:
        """Record the size of one part. Return False if the user must be measured as a whole: it is
        unknown whether the part is counted in the rest.
        """
        user = self._user(uid)
        if user.measured_at is None or (part not in user.parts and len(user.parts) >= MAX_PARTS):
            return False
        before, user.parts[part] = user.parts.get(part, Size()), size
        self._replaced(uid, before, size)
        return True

    def grow(self, uid: str, part: str, size: Size) -> None:
        """Add to a part: a file that was stored, or the evidence of an execution."""
        user = self._user(uid)
        if part in user.parts:
            user.parts[part] += size
        else:
            user.rest += size
        self._replaced(uid, Size(), size)

    def forget(self, uid: str) -> None:
        """Forget a user who has no files any more."""
        self.users.pop(uid, None)
        self._totals.pop(uid, None)

    # ---- uploads

    def reserve(self, uid: str, size: int) -> None:
        """Count the bytes of an upload in progress. Raises Refusal("quotaExceeded")."""
        quota, used = self.quota(uid), self.used(uid)
        if quota.hard is not None and used + size > quota.hard:
            raise self._refusal(uid, quota, f", and the upload needs {amount(size)} more")
        self._uploading[uid] = self._uploading.get(uid, 0) + size

    def unreserve(self, uid: str, size: int) -> None:
        """Stop counting an upload that is over."""
        left = self._uploading.get(uid, 0) - size
        if left > 0:
            self._uploading[uid] = left
        else:
            self._uploading.pop(uid, None)

    # ---- quotas

    def used(self, uid: str) -> int:
        """Return the bytes of a user, uploads in progress included."""
        return self._totals.get(uid, Size()).bytes + self._uploading.get(uid, 0)

    def quota(self, uid: str) -> Quota:
        known = self.users.get(uid)
        limits = self._queues.limits_of(None if known is None else known.plan, uid)
        soft, hard = limits.disk_soft, limits.disk_hard
        return Quota(None if soft is None else soft * _MIB, None if hard is None else hard * _MIB)

    def refusal(self, uid: str, plan: str | None) -> Refusal | None:
        """Return why a user may start no new run, or None. plan: of the request; it is remembered."""
        self._remember(uid, plan)
        quota = self.quota(uid)
        return self._refusal(uid, quota) if quota.state(self.used(uid)) == "hard" else None

    def warning(self, uid: str) -> str | None:
        """Return a sentence about a soft quota that is exceeded, or None."""
        quota, used = self.quota(uid), self.used(uid)
        if quota.soft is None or quota.state(used) == "ok":
            return None
        then = (
            "" if quota.hard is None else f" (from {amount(quota.hard)} on, new runs are refused)"
        )
        return f"the files of user {uid} use {amount(used)}, and the soft quota is {amount(quota.soft)}{then}; {self._remedy(uid)}"

    def report(self, uid: str) -> dict[str, Any]:
        """Return the usage of a user as in the answer of the API."""
        user, quota, used = self.users.get(uid) or UserDisk(), self.quota(uid), self.used(uid)
        total = self._totals.get(uid, Size())
        return {
            "user": uid,
            "state": quota.state(used),
            "usedBytes": used,
            "files": total.files,
            "softBytes": quota.soft,
            "hardBytes": quota.hard,
            "complete": total.complete and uid in self._totals,
            "measuredAt": user.measured_at,
            "largest": [{"name": name, "bytes": size} for name, size in user.largest],
        }

    def counted(self) -> dict[str, int]:
        """Return the bytes of all users, and the numbers of users above a quota."""
        states = [self.quota(uid).state(size.bytes) for uid, size in self._totals.items()]
        return {
            "bytes": sum(size.bytes for size in self._totals.values()),
            "files": sum(size.files for size in self._totals.values()),
            "soft": states.count("soft"),
            "hard": states.count("hard"),
        }

    # ---- storage

    def stored(self) -> bytes:
        """Return the sums for a file."""
        return msgspec.json.encode(
            {
                uid: UserDisk(plan=user.plan, rest=self._totals.get(uid, Size()))
                for uid, user in self.users.items()
            }
        )

    def restore(self, data: bytes) -> None:
        """Read the sums of an earlier process. Raises msgspec.ValidationError or DecodeError."""
        self.users = msgspec.json.decode(data, type=dict[str, UserDisk])
        self._totals = {uid: user.total for uid, user in self.users.items()}

    # ---- inside

    def _user(self, uid: str) -> UserDisk:
        return self.users.setdefault(uid, UserDisk())

    def _changed(self, uid: str) -> None:
        self._totals[uid] = self.users[uid].total

    def _replaced(self, uid: str, before: Size, now: Size) -> None:
        """Update the sum of a user, without adding up all parts if everything is known completely."""
        total = self._totals.get(uid)
        if total is None or not total.complete or not now.complete:
            self._changed(uid)
            return
        changes = now.bytes - before.bytes, now.files - before.files
        self._totals[uid] = Size(total.bytes + changes[0], total.files + changes[1])

    def _remember(self, uid: str, plan: str | None) -> None:
        known = self.users.get(uid)
        if (None if known is None else known.plan) != plan:
            self._user(uid).plan = plan

    def _refusal(self, uid: str, quota: Quota, more: str = "") -> Refusal:
        assert quota.hard is not None
        used = self.used(uid)
        return Refusal(
            "quotaExceeded",
            f"the files of user {uid} use {amount(used)} of {amount(quota.hard)}{more}; {self._remedy(uid)}",
            {"usedBytes": used, "hardBytes": quota.hard, "largest": self._largest(uid)},
        )

    def _largest(self, uid: str) -> list[dict[str, Any]]:
        known = self.users.get(uid)
        return [] if known is None else [{"name": n, "bytes": size} for n, size in known.largest]

    def _remedy(self, uid: str) -> str:
        """Return what to remove, with the command."""
        named = [(e["name"], e["bytes"]) for e in self._largest(uid)]
        run = next((name for name, _ in named if is_simulation(name)), None)
        if run is None:
            return (
                "remove files that are not needed ('jobscribe usage --disk' shows the largest ones)"
            )
        sizes = ", ".join(f"{name} {amount(size)}" for name, size in named[:3])
        sid = run.rpartition("/")[2]
        return (
            f"the largest are {sizes}; remove what is not needed, for example: jobscribe job purge {sid}"
            f" (on the site's machine also: rm -r {self._user_root}/{uid}/{run})"
        )


def is_simulation(part: str) -> bool:
    """Return whether a part is the folder of a simulation."""
    return part != EVIDENCE and not part.endswith("/lib")


def amount(size: float) -> str:
    """Return bytes for people."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def reports(usage: DiskUsage, uids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the reports of users, the largest first."""
    return sorted((usage.report(uid) for uid in uids), key=lambda r: (-r["usedBytes"], r["user"]))
