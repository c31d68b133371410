"""A process that appends to a store and prints the acknowledged batches until it is killed or
stopped.

`ack ROOT`: appends batches of one to four events over several streams, many in flight; prints
`<stream> <version>` for each acknowledged batch. `full ROOT LIMIT`: can write files of LIMIT bytes
only; prints the results as JSON lines.
"""

import json
import queue
import resource
import sys
from pathlib import Path

from jobscribe.db.events.events import SupervisorStarted
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, Write
from jobscribe.protocol.errors import Refusal


def events(stream: str, version: int, count: int) -> tuple:
    return tuple(
        SupervisorStarted(at=1.0, session=version + n + 1, pid=1, boot_id=stream, version="x" * 200)
        for n in range(count)
    )


def ack(root: Path) -> None:
    calls: queue.Queue = queue.Queue()
    store = SqliteStore(root / "db" / "events.sqlite", calls.put)
    versions = {f"s{n}": len(store.read(f"s{n}")) for n in range(9)}
    number = waiting = 0

    def told(stream: str, version: int, result: object) -> None:
        nonlocal waiting
        waiting -= 1
        if not isinstance(result, Appended):
            raise SystemExit(f"refused: {result}")
        sys.stdout.write(f"{stream} {version}\n")
        sys.stdout.flush()

    while True:
        while waiting < 30:
            stream, count = f"s{number % 9}", 1 + number % 4
            write = Write(stream, versions[stream], events(stream, versions[stream], count))
            versions[stream] += count
            store.append(
                Batch(writes=(write,)), lambda r, s=stream, v=versions[stream]: told(s, v, r)
            )
            number, waiting = number + 1, waiting + 1
        calls.get()()


def full(root: Path, limit: int) -> None:
    calls: queue.Queue = queue.Queue()
    store = SqliteStore(root / "db" / "events.sqlite", calls.put)
    version = 0

    def append() -> Appended | Refusal:
        results: list[Appended | Refusal] = []
        store.append(Batch(writes=(Write("s", version, events("s", version, 5)),)), results.append)
        while not results:
            calls.get()()
        return results[0]

    def say(**what: object) -> None:
        print(json.dumps(what), flush=True)

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    while isinstance(result := append(), Appended):
        version = result.last
    say(
        refused=result.code,
        sentence=result.sentence,
        head=store.head(),
        version=version,
        read=len(store.read("s")),
    )
    again = append()
    store.resume()
    still = append()
    say(again=getattr(again, "code", "ok"), still=getattr(still, "code", "ok"), head=store.head())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.resume()
    result = append()
    say(recovered=isinstance(result, Appended), head=store.head(), version=version)
    store.close()


if __name__ == "__main__":
    if sys.argv[1] == "ack":
        ack(Path(sys.argv[2]))
    else:
        full(Path(sys.argv[2]), int(sys.argv[3]))
