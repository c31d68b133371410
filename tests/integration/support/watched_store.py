"""A store in PostgreSQL that tests write to directly, with what it reported about each event."""

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobscribe.db.events.events import SupervisorStarted
from jobscribe.db.postgres.opening import Site
from jobscribe.db.postgres.store import PostgresStore
from jobscribe.db.store.contract import Appended, Batch, StoreUnreachable, Write
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.store_address import parsed

DEADLINE = 60.0


class Disk:
    """A store of a site. `results` has what it reported, by number of the event."""

    def __init__(
        self, url: str, root: Path, root_id: str = "root", password_file: str | None = None
    ) -> None:
        self.site = Site(parsed(url), password_file, root / "db", root_id)
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.results: dict[int, Appended | Refusal] = {}
        self.point: Callable[[str], None] = lambda _: None
        self.store = PostgresStore(self.site, self.calls.put, point=lambda p: self.point(p))

    def append(
        self, number: int, stream: str | None = None, version: int = 0, text: str = "1"
    ) -> None:
        event = SupervisorStarted(at=1.0, session=number, pid=1, boot_id="b", version=text)
        batch = Batch(writes=(Write(stream or f"s{number}", version, (event,)),))
        self.store.append(batch, lambda r: self.results.__setitem__(number, r))

    def settle(self, *numbers: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while not self.results.keys() >= set(numbers):
            self.calls.get(timeout=max(0.1, deadline - time.monotonic()))()

    def now(self, number: int, text: str = "1") -> Appended | Refusal:
        self.append(number, text=text)
        self.settle(number)
        return self.results[number]

    def resume(self) -> None:
        wait(self._resumed)

    def appended(self, number: int) -> int:
        """Append events until one is in the log: the server may restart once more after the end of
        a backend. Return its number.
        """
        deadline = time.monotonic() + DEADLINE
        while True:
            self.resume()
            if isinstance(self.now(number), Appended):
                return number
            assert time.monotonic() < deadline
            number += 1

    def _resumed(self) -> bool:
        try:
            self.store.resume()
            self.store.read_all()
        except StoreUnreachable:
            return False
        except Refusal as e:
            assert e.code == "storageUnavailable" and self.store._writer.dead is None, e
            return False
        return True

    def logged(self) -> list[int]:
        return [s.event.session for s in self.store.read_all(limit=10**6)]


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_log(disk: Disk) -> None:
    """Assert that what was reported as appended, and nothing else, is in the log, each once."""
    wait(disk._resumed)
    promised = [n for n, r in disk.results.items() if isinstance(r, Appended)]
    assert sorted(disk.logged()) == sorted(promised)
