"""The thread that watches the lease of a site while this supervisor stands by, and takes it when it is
free. It also checks that the root is the holder's.
"""

import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg

from ...db.postgres import lease, lease_protocol, opening, shards, supervisors
from ...db.postgres.connection import Raw, connect, refusal
from ...db.postgres.supervisors import About, Claim, Seen
from ...db.store.head_file import NOTHING, read_head
from ...protocol.errors import Refusal
from ...runtime import processes
from ...runtime.filesystems import make_folder, write_atomically

#: Interval of the looks, and of this supervisor's own signs of life, in seconds.
LOOK_SECS, BEAT_SECS = 0.5, 2.0
#: Shortest interval of the looks: the end of a lease that was read is known to a few milliseconds.
SOON_SECS = 0.02
#: A holder whose text in the root differs from ours in this many looks has another folder: a network
#: file system may show the last one for a few seconds.
MOST_DIFFERENT = 16
#: A holder that does not stand by is reported after this many looks: it may be about to stop.
MOST_ALONE = 16
#: Limit of the wait for the end of the thread, in seconds.
STOP_SECS = 2.0
#: A holder on another machine is reported after this many looks within a renewed lease.
MOST_ELSEWHERE = 16
#: File in `db/` whose hash the holder writes to the database.
SHARED = "shared"


class Taken(msgspec.Struct, frozen=True):
    """This process has the lease, or the log is to be opened to say why it has none."""


class Unknown(msgspec.Struct, frozen=True):
    """The database does not answer. why: a sentence."""

    why: str


class Behind(msgspec.Struct, frozen=True):
    """The lease is free, but the log in the database lacks commits. why: a sentence."""

    why: str


News = Seen | Taken | Unknown | Behind | Refusal


class Lookout:
    """tell: called in the thread with each look. The last one is Taken or Refusal, unless it is
    stopped.
    """

    def __init__(
        self,
        site: opening.Site,
        claim: Claim,
        about: About,
        tell: Callable[[News], None],
        *,
        local: bool = False,
    ) -> None:
        """local: jobs run on the supervisor's own machine."""
        self._local = local
        self._site, self._claim, self._about, self._tell = site, claim, about, tell
        self._stop = threading.Event()
        self._raw: Raw | None = None
        self._different = self._alone = self._elsewhere = 0
        self._timeline = lease_protocol.Timeline()
        self._beat_at = 0.0
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(STOP_SECS)  # it may wait for the database

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                news = self._looked()
                self._tell(news)
                if isinstance(news, Taken | Refusal):
                    return
                self._stop.wait(_pause(news))
        finally:
            if self._raw is not None:
                self._raw.close()

    def _looked(self) -> News:
        try:
            if self._raw is None or self._raw.closed:
                self._raw = self._connected()
            return self._look(self._raw)
        except (psycopg.Error, OSError) as e:
            if self._raw is not None:
                self._raw.close()
            problem = refusal(e, self._site.address)
            return Unknown(problem.sentence) if problem.code == "storageUnavailable" else problem
        except Refusal as e:
            return e

    def _connected(self) -> Raw:
        raw = connect(self._site.address, self._site.password_file)
        try:
            opening.check_clock(self._site, raw)
            new = read_head(self._site.folder) in (None, NOTHING)
            if new and not opening.has_tables(raw, self._site.address.schema):
                opening.create(self._site, raw)
            if opening.has_tables(raw, self._site.address.schema):
                opening.check_site(self._site, raw)
                shards.check(raw, self._site.address, self._site.shard)
                supervisors.create(raw)
                supervisors.replace(raw, self._claim.holder, self._about)
        except BaseException:
            raw.close()
            raise
        return raw

    def _look(self, raw: Raw) -> News:
        if not opening.has_tables(raw, self._site.address.schema):
            return Taken()  # opening it says what is missing
        if time.monotonic() >= self._beat_at:
            supervisors.beat(raw, self._claim.holder, self._about)
            self._beat_at = time.monotonic() + BEAT_SECS
        seen = supervisors.look(raw)
        self._about = msgspec.structs.replace(self._about, clock_ahead=time.time() - seen.clock)
        self._check_folder(seen)
        if self._different:
            return seen
        dead = seen.about is not None and has_ended(seen.about)
        if dead or seen.free:
            why = opening.lacking(self._site, seen.position)
            if why is not None:
                return Behind(why)
        settled = self._timeline.settled(
            seen.timeline, released=seen.released, now=time.monotonic()
        )
        if not dead and not (seen.free and settled):
            self._check_alone(seen)
            if seen.about is not None:
                self._check_machine(seen.about, seen.expires_in)
                return seen
        return Taken() if self._take(raw, seen.holder if dead else None) else seen

    def _take(self, raw: Raw, dead: str | None) -> bool:
        holder, address = self._claim.holder, self._site.address
        try:
            lease_protocol.perform(
                lease_protocol.take(self._claim.deadline),
                lambda step: lease.take(raw, holder, address.schema, address.name, dead),
            )
        except Refusal:
            return False  # another one was faster, or the holder lives
        self._claim.deadline.watch()
        text = secrets.token_hex(16)
        make_folder(str(self._site.folder))
        self._claim.deadline.check()  # the root may be the next holder's by now
        write_atomically(str(self._site.folder / SHARED), text.encode(), sync=True)
        supervisors.prove(raw, self._claim.holder, _hash(text.encode()))
        return True

    def _check_folder(self, seen: Seen) -> None:
        """Raise Refusal if the root is not the holder's."""
        same = not seen.proof or _hash(_read(self._site.folder / SHARED)) == seen.proof
        self._different = 0 if same else self._different + 1
        if self._different > MOST_DIFFERENT:
            where = "" if seen.about is None else f" ({seen.about.host})"
            raise Refusal(
                "badConfig",
                f"the root {self._site.folder.parent} is not the root of the supervisor that serves the"
                f" site{where}: both need the same folder, on a file system that both machines share",
            )

    def _check_alone(self, seen: Seen) -> None:
        """Raise Refusal if the holder does not stop when its lease ends."""
        self._alone = 0 if seen.about is not None else self._alone + 1
        if self._alone > MOST_ALONE:
            raise Refusal(
                "rootBusy",
                f"another supervisor serves the site in {self._site.address.name} and has no store.standby:"
                f" {seen.holder.rpartition(' ')[0]}. Set it there, too, and restart that supervisor first",
            )

    def _check_machine(self, holder: About, expires_in: float) -> None:
        """Raise Refusal if the holder lives on another machine and has jobs there: this supervisor
        would take them for lost.
        """
        other = holder.boot_id != self._about.boot_id and holder.host != self._about.host
        if not (self._local and other):
            self._elsewhere = 0
        elif expires_in > lease_protocol.LEASE_SECS / 2:  # it renews its lease
            self._elsewhere += 1
        if self._elsewhere > MOST_ELSEWHERE:
            raise Refusal(
                "badConfig",
                f"the supervisor that serves the site is on {holder.host}, and this one on {self._about.host},"
                " but drivers.use has local: its jobs are processes of one machine. Remove local from"
                " drivers.use, or start all supervisors on one machine",
            )


def _pause(news: News) -> float:
    """Return the seconds until the next look: a lease is taken as soon as it ends."""
    left = news.expires_in if isinstance(news, Seen) and not news.free else LOOK_SECS
    return min(LOOK_SECS, max(left, SOON_SECS))


def life(pid: int) -> str:
    """Return what identifies a process of this machine's boot and pid namespace."""
    space = os.readlink("/proc/self/ns/pid")
    return f"{processes.boot_id()} {space} {processes.start_ticks(pid)}"


def has_ended(about: About) -> bool:
    """Return whether this process has certainly ended: it was killed, and this is its machine."""
    known = about.life.rpartition(" ")
    if known[0] != life(os.getpid()).rpartition(" ")[0] or not known[2].isdigit():
        return False
    try:
        stat = Path(f"/proc/{about.pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False  # for example, too many open files: that proves nothing
    # state, number of threads and start time, as in proc(5)
    fields = stat[stat.rfind(b")") + 2 :].split()
    return int(fields[19]) != int(known[2]) or (fields[0] in b"ZX" and int(fields[17]) <= 1)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
