"""After the log was set back (a backup was restored, a damaged end cut off): agents may run what it
does not know.

Such an agent may hold a token that the log has forgotten, and then nobody would ever hear of it:
its jobs would run on unnoticed. So every agent that has a folder here is asked for once. One that
is still known connects, and what the log does not know of its tasks is stopped; of one that may not
connect the driver ends keeper and jobs, and the next one adopts nothing that still runs.
"""

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from ...protocol.errors import Refusal
from ...protocol.ids import parse_agent_key
from ..runs.service import RunService


def ask_for_all(folder: Path, drivers: Container[str], desk: RunService) -> None:
    """folder: where the agents have theirs, each named by its key."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            with contextlib.suppress(Refusal):
                key = parse_agent_key(name)
                if key.driver in drivers:
                    desk.log(
                        "the log was set back: {} is asked what it runs", str(key), uid=key.uid
                    )
                    desk.start_agent(key)
