"""What is said while one request takes long: how far it has come, asked for beside it, on a
connection of its own.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..terminal.screen import QUIET_SECS
from .session import Session

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Between two questions, and how long the end of one is waited for when nobody needs its answer any
#: more.
EVERY_SECS, LAST_SECS = 1.0, 1.0


@contextlib.contextmanager
def ticking(session: Session, client: "Client", said: "Callable[[Client], str]") -> Iterator[None]:
    """Shows what `said` says of a copy of the client, from QUIET_SECS on, until the block is left."""
    over = threading.Event()
    begun = time.monotonic()
    # a question is asked once: the request beside it is what says that the supervisor is away
    asker = client.copy(budget_secs=0.0)

    def run() -> None:
        from ...client.api.errors import ClientError

        pause = QUIET_SECS
        with asker:
            while not over.wait(pause):
                pause = EVERY_SECS
                try:
                    text = said(asker)
                except ClientError:
                    continue  # not there yet, or away for a moment
                if not over.is_set():
                    session.screen.progress(text, time.monotonic() - begun)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_SECS)
