"""Progress messages during one long request, read over a second connection."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..terminal.screen import QUIET_SECS
from .session import Session

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Interval between progress requests, and limit for the last one to finish.
INTERVAL_SECS, JOIN_SECS = 1.0, 1.0


@contextlib.contextmanager
def show_progress(
    session: Session, client: "Client", describe: "Callable[[Client], str]"
) -> Iterator[None]:
    """Show the text that `describe` returns for a copy of the client, from QUIET_SECS on, until the
    block ends.
    """
    over = threading.Event()
    begun = time.monotonic()
    # No retries: the main request reports an unavailable supervisor.
    observer = client.copy(budget_secs=0.0)

    def run() -> None:
        from ...client.api.errors import ClientError

        pause = QUIET_SECS
        with observer:
            while not over.wait(pause):
                pause = INTERVAL_SECS
                try:
                    text = describe(observer)
                except ClientError:
                    continue  # not started yet, or temporarily unavailable
                if not over.is_set():
                    session.screen.progress(text, time.monotonic() - begun)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(JOIN_SECS)
