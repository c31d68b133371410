"""The oracle: checks the product against the stamps that jobs wrote and the answers that clients
journaled, and trusts nothing else.

An oracle job is a shell that stamps its start and its end. Each stamp is one line, appended to one
file in one write: token, pid and start time, seconds since boot, and at the end the exit code. The
job also holds a lock for its computeJid: if another job holds that lock, it stamps `overlap`. A
client's journal is synced before the next request is sent. The product's own reports (status, event
log) are compared with these, never the other way round.
"""

import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from consistency_check import events
from supervisor_process import SupervisorProcess, jid_of, spec, until

from jobscribe.runtime import processes

FINAL = ("completed", "canceled", "error", "job_run_purged")
_RANK = {"missing": 0, "pending": 1, "running": 2, **dict.fromkeys(FINAL, 3)}
_PRELUDE = """
read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ born _ </proc/$$/stat
stamp() {{ read -r up _ </proc/uptime; echo "$1 $JOBSCRIBE_TOKEN $$ $born $up ${{2:-}}" >>{stamps}; }}
exec 8>>{locks}/$JOBSCRIBE_COMPUTE_JID
flock -n 8 || stamp overlap
stamp start
"""
_END = """
code=$?
stamp end $code
echo the last line
exit $code
"""


class Stamp(NamedTuple):
    """One line of the stamp file. born: start time of the process in ticks since boot; at: seconds
    since boot; code: exit code in an end stamp.
    """

    what: str
    token: str
    pid: int
    born: int
    at: float
    code: int | None


class Ack(NamedTuple):
    """An acknowledged request."""

    request: str
    jid: str
    serial: int


class Oracle:
    """Oracle for one root. All files lie in `folder` (`<place>/witness`), which every user may
    write.

    alive: returns whether the process of a stamp still runs.
    """

    def __init__(
        self,
        site: SupervisorProcess,
        folder: Path | None = None,
        alive: Callable[[Stamp], bool] = lambda s: processes.alive(s.pid, s.born),
    ) -> None:
        self._site, self._lives = site, alive
        self.folder = folder or site.place / "witness"
        self._stamps, self._journal, self._locks = (
            self.folder / n for n in ("stamps", "journal", "locks")
        )
        for folder in (self.folder, self._locks):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        for file in (self._stamps, self._journal):
            file.touch()
            file.chmod(0o666)
        self._writing = threading.Lock()
        self._heard: dict[tuple[str, int], dict[str, Any]] = {}
        self._answered: dict[str, tuple[str, int]] = {}

    # ---- jobs

    def text(self, text: str) -> str:
        """Return shell text that runs `text` in a subshell between its stamps and exits with its
        code.
        """
        return _PRELUDE.format(stamps=self._stamps, locks=self._locks) + f"( {text}\n)" + _END

    def job(self, text: str = ":", **fields: Any) -> dict[str, Any]:
        """Return a run. fields: as in `spec`."""
        return spec(["/bin/sh", "-c", self.text(text)], **fields)

    def gated(self, code: int = 0, gate: str = "gate", **fields: Any) -> dict[str, Any]:
        """Return a run that waits at a gate without doing anything, and then exits with this code."""
        fifo = self.folder / gate
        if not fifo.exists():
            os.mkfifo(fifo)
            fifo.chmod(0o666)
        return self.job(f"[ -e {fifo}.open ] || read -r _ <{fifo}; exit {code}", **fields)

    def open(self, gate: str = "gate") -> None:
        """Let all jobs at the gate continue, and those that come later. Repeat the call until all
        are over: a job may be about to wait.
        """
        (self.folder / f"{gate}.open").touch()
        try:
            os.close(os.open(self.folder / gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # no job waits at the moment
            return

    # ---- clients

    def acknowledged(self, request: str, reply: dict[str, Any]) -> None:
        """Journal an acknowledgement; check that an earlier answer to the same request was the
        same.
        """
        jid, serial = reply["computeJid"], reply["computeJobSerial"]
        with self._writing:
            before = self._answered.setdefault(request, (jid, serial))
            assert before == (jid, serial), (request, before, serial)
            with self._journal.open("ab") as f:
                f.write(json.dumps([request, jid, serial]).encode() + b"\n")
                f.flush()
                os.fsync(f.fileno())

    def heard(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Check one client's answers in order: the state of a run never goes back, and its end
        never changes.
        """
        if reply["state"] == "missing":
            return reply
        key = reply["computeJid"], reply["computeJobSerial"]
        before = self._heard.get(key)
        if before is not None:
            assert _RANK[reply["state"]] >= _RANK[before["state"]], (before, reply)
            if before["state"] in FINAL:
                assert (reply["state"], reply["reason"]) == (before["state"], before["reason"]), (
                    before,
                    reply,
                )
        self._heard[key] = reply
        return reply

    def submit(self, run: dict[str, Any], request: str, **fields: Any) -> dict[str, Any]:
        """Submit a run and journal the answer."""
        reply: dict[str, Any] = self._site.post("run-simulation", reqId=request, run=run, **fields)
        self.acknowledged(request, reply)
        return self.heard(reply)

    def status(self, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return self.heard(self._site.status(run, **fields))

    # ---- recorded facts

    def acks(self) -> list[Ack]:
        return [Ack(*json.loads(line)) for line in self._journal.read_text().splitlines()]

    def stamps(self, run: dict[str, Any] | None = None) -> list[Stamp]:
        """Return all stamps, or those of one run's computeJid, in order."""
        out = []
        for line in self._stamps.read_text().splitlines():
            what, token, pid, born, at, *code = line.split()
            if run is None or token.split("/")[0] == jid_of(run):
                out.append(
                    Stamp(
                        what, token, int(pid), int(born), float(at), int(code[0]) if code else None
                    )
                )
        return out

    def started(self, run: dict[str, Any]) -> list[Stamp]:
        return [s for s in self.stamps(run) if s.what == "start"]

    def alive(self, run: dict[str, Any]) -> bool:
        """Return whether the process of the last start stamp still runs."""
        stamps = self.started(run)
        return bool(stamps) and self._lives(stamps[-1])

    # ---- final checks

    def check(self, *, killed: frozenset[str] = frozenset()) -> str:
        """When all jobs are over, check every promise. Return a summary of the checks. killed: jids
        of jobs that the test itself killed.
        """
        stamps, acks = self.stamps(), self.acks()
        self._check_starts(stamps)
        _check_overlaps(stamps)
        left = [s for s in stamps if s.what == "start" and self._lives(s)]
        assert left == [], "these still run"
        told = self._ends()
        for ack in acks:
            assert (ack.jid, ack.serial) in told, f"{ack} was acknowledged, and nobody knows it"
        for s in stamps:
            jid, serial = s.token.split("/")[:2]
            assert (jid, int(serial)) in told, f"{s} ran, and nobody knows it"
        judged = {(a.jid, a.serial) for a in acks} | {
            (jid, int(serial)) for jid, serial in (s.token.split("/")[:2] for s in stamps)
        }
        for jid, serial in sorted(judged):
            ends = told[jid, serial]
            assert len(ends) == 1, f"{jid} {serial} ended more than once: {ends}"
            self._check_end(jid, serial, ends[0], stamps, killed)
        return f"{len(acks)} acknowledgements, {len(judged)} runs, {len(stamps)} stamps"

    def _check_starts(self, stamps: list[Stamp]) -> None:
        starts = Counter(s.token for s in stamps if s.what == "start")
        twice = [token for token, n in starts.items() if n > 1]
        assert twice == [], "started more than once"
        ends = Counter(s.token for s in stamps if s.what == "end")
        assert all(starts[token] == n == 1 for token, n in ends.items()), ends

    def _ends(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return the RunEnded events of the product's log for every run in it."""
        out: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for e in events(self._site.root):
            if e["type"] in ("RunRequested", "RunEnded"):
                key = e["stream"].removeprefix("job/"), e["event"]["serial"]
                out.setdefault(key, [])
                if e["type"] == "RunEnded":
                    out[key].append(e["event"])
            elif e["type"] == "JobFolded":
                _add_folded(e["event"]["job"], out)
        return out

    def _check_end(
        self,
        jid: str,
        serial: int,
        end: dict[str, Any],
        stamps: list[Stamp],
        killed: frozenset[str],
    ) -> None:
        mine = [s for s in stamps if s.token.startswith(f"{jid}/{serial}/")]
        codes = [s.code for s in mine if s.what == "end"]
        if end["status"] == "completed":
            assert codes == [0], (jid, serial, end, mine)
        elif end["status"] == "error" and codes:
            assert codes[0] != 0 or jid in killed, (jid, serial, end, mine)
        elif end["status"] == "error":
            assert jid in killed, f"{jid} {serial} did not end, and nobody killed it: {end} {mine}"
        heard = self._heard.get((jid, serial))
        if heard is not None and heard["state"] in FINAL:
            assert heard["state"] == end["status"], (heard, end)


def _check_overlaps(stamps: list[Stamp]) -> None:
    """Check by the lock and by the clock that no two runs of one computeJid overlapped."""
    assert [s for s in stamps if s.what == "overlap"] == []
    ends = {s.token: s.at for s in stamps if s.what == "end"}
    starts: dict[str, list[Stamp]] = {}
    for s in stamps:
        if s.what == "start":
            starts.setdefault(s.token.split("/")[0], []).append(s)
    for runs in starts.values():
        runs.sort(key=lambda s: s.at)
        for earlier, later in itertools.pairwise(runs):
            # without an end stamp the run was killed: the lock covers that case
            assert ends.get(earlier.token, earlier.at) <= later.at, (earlier, later)


def kill(stamp: Stamp, number: int = signal.SIGKILL) -> None:
    """Signal exactly the process of this stamp; with SIGKILL, return when it is gone."""
    assert processes.send_signal(stamp.pid, stamp.born, number), f"{stamp} does not run"
    if number == signal.SIGKILL:
        until(lambda: not processes.alive(stamp.pid, stamp.born), f"{stamp} is gone")


def _add_folded(job: dict[str, Any], out: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """Add the ends of the runs of a job that was compacted."""
    for run in [*job.get("history", ()), *([job["run"]] if job.get("run") else [])]:
        ended = run["status"] in FINAL
        out.setdefault((job["jid"], run["serial"]), [])
        out[job["jid"], run["serial"]] += [run] if ended else []
