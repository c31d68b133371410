"""Access control for tests: real API tokens and audit trail on an engine, with a clock to set."""

import os
import time
from types import SimpleNamespace
from typing import Any

from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.service.site.secret_rotation import fixed
from jobscribe.service.site.users_file import Users
from jobscribe.supervisor.access.api_tokens import ApiTokens
from jobscribe.supervisor.access.audit import AuditTrail
from jobscribe.supervisor.access.authentication import Access
from jobscribe.supervisor.access.request_rates import RequestRates
from jobscribe.supervisor.core.interface.inputs import Now
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.engine.decision_loop import Engine

WALL = 1_700_000_000.0


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.at = WALL

    def wall(self) -> float:
        return self.at


def engine(store: Any = None) -> Engine:
    """Return an engine on this store, or on an empty one in memory."""
    ports: Any = SimpleNamespace(
        now=lambda: Now(WALL, 0.0, "boot0", os.urandom(32)),
        perform=lambda effect, cause: None,
        noticed=lambda what, detail: None,
        connections=list,
    )
    return Engine(CoreConfig(), store or MemoryStore(lambda call: call()), ports)


def access(
    secret: str,
    *,
    on: Engine | None = None,
    users: Users | None = None,
    clock: Clock | None = None,
    monitors: Any = lambda header: False,
    rates: RequestRates | None = None,
) -> Access:
    on, clock = on or engine(), clock or Clock()
    tokens = ApiTokens(on, clock.wall, os.urandom)
    rates = rates or RequestRates(1e6, 1_000_000, time.monotonic, failures=1_000_000)
    return Access(
        fixed(secret), monitors, tokens, users or Users(), AuditTrail(on, clock.wall), rates
    )
