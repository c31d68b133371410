"""The power is cut at every relevant moment: all promised data survives, whatever part of the
unsynced data arrived.

The test records a real supervisor on a new root through three lives (killed, stopped by SIGTERM,
killed). `power_cut` computes possible disk contents at a moment; the test opens each as at a start.
"""

import hashlib
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import strace_calls
from durability_oracle import DurabilityOracle, Job, keep_them
from power_cut import Disk, File
from strace_calls import Call, path_of
from supervisor_process import UID, SupervisorProcess, shell, until

from jobscribe.runtime.execution import folder as evidence
from jobscribe.runtime.execution import keeper_ledger

SOAK = os.environ.get("SOAK") == "1"
#: Number of disks made from the recording, by kind of moment. With SOAK=1 every moment of the first
#: two kinds, and more of the third.
SHARE = {"sync": 40, "promise": 25, "other": 25}
OTHERS_IN_SOAK = 2000
#: Possible contents looked at after each write to a file of a keeper.
IMAGES_OF_FILE = 20
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 10**6)
#: Clients, and runs of each client in each life. The test waits for this number in total.
CLIENTS, RUNS = 3, 25 if SOAK else 12
SYNCS = ("fsync", "fdatasync", "sync", "syncfs")


class Client:
    """Submits runs until it has enough, or until the supervisor is gone or about to stop."""

    def __init__(self, site: SupervisorProcess, numbers: Iterator[int]) -> None:
        self.acknowledged: dict[Job, str] = {}
        self._numbers, self._token, self._connection = numbers, site.token, site.connection()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for request in itertools.islice((f"client-{n}" for n in self._numbers), RUNS):
                said = self._submit(request)
                if said.get("code") == "draining":
                    return
                self.acknowledged[Job(said["computeJid"], said["computeJobSerial"])] = request
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self._connection.close()

    def _submit(self, request: str) -> dict[str, Any]:
        body = json.dumps({"reqId": request, "run": shell("exit 0")})
        self._connection.request(
            "POST", "/api/run-simulation", body, {"Authorization": "Bearer " + self._token}
        )
        said: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return said

    def join(self) -> None:
        self._thread.join()


@dataclass(frozen=True)
class Recording:
    root: Path
    calls: list[Call] = field(repr=False)
    #: reqId by jid, of all acknowledged runs
    requests: dict[str, str] = field(repr=False)
    acknowledged: set[Job] = field(repr=False)
    #: trace of the first life, whose keepers outlived it
    trace: Path
    #: the last moment of the life that was stopped by SIGTERM
    stopped: int
    secrets: dict[str, str]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    strace_calls.required()
    folder = tmp_path_factory.mktemp("recording")
    site = SupervisorProcess(python=str(folder / "python"), disk=True)
    try:
        yield _recorded(site, folder)
    finally:
        left = site.end()
    assert left == {}


def _recorded(site: SupervisorProcess, folder: Path) -> Recording:
    numbers, acknowledged, calls = itertools.count(), dict[Job, str](), list[Call]()
    ends: list[int] = []
    for life, ending in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        strace_calls.write_recorder(folder / "python", folder / f"trace-{life}")
        site.start()
        _other_promises(site, life)
        clients = [Client(site, numbers) for _ in range(CLIENTS)]
        until(
            lambda clients=clients: sum(len(c.acknowledged) for c in clients) >= RUNS,
            "many are acknowledged",
        )
        assert site.stop(ending) == (0 if ending == signal.SIGTERM else -ending)
        for client in clients:
            client.join()
            acknowledged.update(client.acknowledged)
        calls += strace_calls.calls(folder / f"trace-{life}", ends[-1] + 1 if ends else 0)
        ends.append(max(c.ended or c.began for c in calls))
    secrets = {p.name: p.read_text() for p in (site.root / "secret").iterdir()}
    return Recording(
        site.root,
        calls,
        {job.jid: request for job, request in acknowledged.items()},
        set(acknowledged),
        folder / "trace-0",
        ends[1],
        secrets,
    )


def _other_promises(site: SupervisorProcess, life: int) -> None:
    """Make other promises: ports, a library file, a watched run, and a canceled run."""
    site.post(
        "global-resources",
        uid=UID,
        simulationType="command",
        simulationId=f"lease{life:03d}",
        ports=2,
    )
    content = os.urandom(3000)
    answer = site.ask(
        "PUT", f"/api/lib-file?uid={UID}&simulationType=command&name=file{life}.dat", content
    )
    assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest(), answer
    site.finished(shell("exit 0", uid="OtherUid"))
    run = shell("sleep 100", uid="OtherUid")
    site.submit(run)
    site.cancel(run)


def _left_out(path: str) -> bool:
    """Return whether the path has no durability promise: SQLite's shared memory, logs, files of
    agents and jobs.
    """
    parts = path.split("/")
    below = parts[1:]
    return (
        parts[0] != "r"
        or parts[-1].endswith("-shm")
        or below[:1] in (["log"], ["agent"], ["supervisor.lock"])
        or (below[:1] == ["user"] and len(below) >= 4 and below[3] != "lib")
    )


def _moments(recording: Recording) -> dict[int, str]:
    """Return the kind of each moment by number: right after a sync, right before a promise, or
    other.
    """
    out: dict[int, str] = {}
    promised, disk = DurabilityOracle(), Disk(recording.root, _left_out)
    for number, call, returned in disk.moments(recording.calls):
        if (
            returned
            and call.name in SYNCS
            and path_of(call.args[0]).startswith(str(recording.root))
        ):
            out[number] = "sync"
        elif not returned and promised.hear(call):
            out[number] = "promise"
        else:
            out.setdefault(number, "other")
    assert recording.acknowledged <= promised.runs, "the trace does not show every answer"
    assert promised.orders and len(promised.uploads) == len(promised.ports) == 3
    return out


def _chosen(moments: dict[int, str], chance: random.Random) -> set[int]:
    out: set[int] = set()
    for kind, share in SHARE.items():
        those = sorted(n for n, k in moments.items() if k == kind)
        share = share if not SOAK else OTHERS_IN_SOAK if kind == "other" else len(those)
        out.update(chance.sample(those, min(share, len(those))))
    return out


@pytest.mark.timeout(1800 if SOAK else 300)
def test_whatever_arrived_everything_promised_is_there_and_the_store_opens(
    recording: Recording, image: Path
) -> None:
    print(f"SEED={SEED}")
    chance = random.Random(SEED)
    moments = _moments(recording)
    chosen = _chosen(moments, chance)
    promised, disk = DurabilityOracle(), Disk(recording.root, _left_out)
    cuts, shorter = 0, 0
    for number, call, returned in disk.moments(recording.calls):
        if not returned:
            promised.hear(call)
        promised.watch_head(call, returned)
        assert number != recording.stopped or promised.synced == promised.noted >= promised.position
        if number not in chosen:
            continue
        chosen.discard(number)
        seed = chance.getrandbits(32)
        disk.write_image(image, random.Random(seed))
        try:
            found = keep_them(
                image / recording.root.name, promised, recording.requests, recording.secrets
            )
        except BaseException as e:
            e.add_note(
                f"the power was cut at moment {number} ({call.name} of {call.args[0][:200]}, SEED={SEED})"
            )
            raise
        cuts, shorter = cuts + 1, shorter + (found.get("events", 0) > promised.position)
        for path in image.iterdir():
            shutil.rmtree(path)
    assert cuts >= sum(SHARE.values()) and shorter
    print(
        f"{cuts} power cuts in {len(moments)} moments, {len(promised.runs)} runs, {promised.position} events told"
    )


def _not_evidence(path: str) -> bool:
    """Return False only for r/agent/<key>/<file> and r/agent/<key>/run/<name>/<file>, where a
    keeper writes the file as a whole, or line by line.
    """
    parts = path.split("/")
    if parts[:2] != ["r", "agent"][: len(parts)]:
        return True
    folder = len(parts) <= 3 or (len(parts) <= 5 and parts[3] == "run")
    return not folder and not re.search(r"\.jsonl?(\.\d+)?(\.new)?$", path)


def test_what_a_keeper_wrote_down_is_read_as_it_was_or_not_at_all(
    recording: Recording, image: Path
) -> None:
    """Keepers do not sync: after a power cut all these jobs are over anyway. But a partial file is
    never read as complete.
    """
    print(f"SEED={SEED}")
    chance, disk = random.Random(SEED), Disk(recording.root, _not_evidence)
    written: dict[str, list[object]] = {}
    ends: dict[tuple[str, str], object] = {}
    found: Counter[str] = Counter()

    def compare(names: Iterable[str], folder: Path) -> None:
        for name in names:
            if name.endswith(".json"):
                version = evidence.read_json(str(folder / name))
                assert version in written[name], (SEED, name, version)
                found["missing" if version is None else "complete"] += 1
                continue
            for execution, entry in keeper_ledger.load(str((folder / name).parent)).entries.items():
                wanted = (None, ends.get((name, execution)))
                assert entry.exit in wanted, (SEED, name, execution)
                found["ends"] += entry.exit is not None

    for _, call, returned in disk.moments(strace_calls.calls(recording.trace)):
        if not returned or call.name not in ("rename", "write"):
            continue
        named = call.args[1 if call.name == "rename" else 0]
        path = path_of(named).removeprefix(f"{recording.root.parent}/")
        node = disk.find(path)
        if not isinstance(node, File) or not path.endswith((".json", "ledger.jsonl")):
            continue
        if path.endswith(".json"):
            written.setdefault(path, [None]).append(json.loads(node.now()))
        else:
            lines = [json.loads(line) for line in node.now().splitlines()]
            ends |= {(path, line["end"]): line["exit"] for line in lines if "end" in line}
        # Most images of the whole disk lack the folder of the file: look at the file alone, too.
        alone = image / "alone" / path
        alone.parent.mkdir(parents=True)
        for _ in range(IMAGES_OF_FILE):
            alone.write_bytes(node.image(chance))
            compare([path], image / "alone")
        shutil.rmtree(image / "alone")
        if chance.random() < (1.0 if SOAK else 0.3):
            disk.write_image(image, chance)
            compare([*written, *{path for path, _ in ends}], image)
            shutil.rmtree(image / "r", ignore_errors=True)
    assert any(name.endswith("/exit.json") for name in written)
    assert ends and found["ends"] and found["complete"] > 20 and found["missing"], found
