"""The tables that shards share in PostgreSQL, for the event loop of a supervisor: grants, and revoked API tokens.
The connection is not that of the log: a commit waits for no other shard.
"""

import functools
import queue
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import psycopg

from ....protocol.grants import Read, Table, Write
from ....protocol.shards import Shard
from ....runtime.store_address import StoreAddress
from ...store.contract import Deliver
from ..connection import Raw, connect
from .statements import Statements

#: A closed table waits this long for a statement.
CLOSE_SECS = 2.0
Done = Callable[[Table | bool | None], None]
_Work = Callable[[Statements], Any]


class SiteTables:
    """Shared tables, in a thread of their own. epoch: of the shard's lease, as the writer of the log has
    it now.
    """

    def __init__(
        self,
        address: StoreAddress,
        password_file: str | None,
        shard: Shard,
        epoch: Callable[[], int],
        deliver: Deliver,
    ) -> None:
        self._address, self._password_file, self._shard = address, password_file, shard
        self._epoch, self._deliver = epoch, deliver
        self._raw: Raw | None = None
        self._statements: Statements | None = None
        self._asked: queue.SimpleQueue[tuple[_Work, Callable[[Any], None]] | None] = (
            queue.SimpleQueue()
        )
        # a database that does not answer does not delay the end of the process
        self._thread = threading.Thread(target=self._run, daemon=True, name="jobscribe grants")
        self._thread.start()

    def perform(self, step: Read | Write, done: Done) -> None:
        """Perform a step. `done` gets its answer: None if the outcome is unknown."""

        def work(statements: Statements) -> Table | bool:
            if isinstance(step, Read):
                return statements.read()
            return statements.write(step, self._epoch())

        self._asked.put((work, done))

    def revoked(
        self,
        own: Mapping[str, float],
        asked: Collection[str],
        done: Callable[[frozenset[str] | None], None],
    ) -> None:
        """Add revoked tokens of this shard. `done` gets those of the tokens `asked` that any shard revoked;
        None if the database does not answer. own: the ends of their lives in unix seconds, by id.
        """
        self._asked.put((lambda statements: statements.revoked(own, asked), done))

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(CLOSE_SECS)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._deliver(functools.partial(asked[1], self._performed(asked[0])))
        if self._raw is not None:
            self._raw.close()

    def _performed(self, work: _Work) -> Any:
        try:
            if self._raw is None or self._statements is None or self._raw.closed:
                self._raw = connect(self._address, self._password_file)
                self._statements = Statements(self._raw, self._address, self._shard)
            return work(self._statements)
        except (psycopg.Error, OSError):
            # the writer of the log reports a database that is away
            if self._raw is not None:
                self._raw.close()
            return None
