"""Search for orphan agents after a rollback of the event log (a restored backup, or a damaged end
that was cut off).

Such an agent may have a token that the log does not contain. Nothing would then report or stop its
jobs. Therefore every agent that has a folder here is started once. A known agent connects, and
tasks that the log does not know are stopped. If an agent may not connect, the driver ends its
keeper and jobs, and the next agent adopts none of them.
"""

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from ...protocol.errors import Refusal
from ...protocol.ids import agent_log_ids, parse_agent_key
from ..runs.service import RunService


def start_all_known(folder: Path, drivers: Container[str], runs: RunService) -> None:
    """Start every agent that has a folder. folder: parent of the agents' folders, each named by its
    key.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            with contextlib.suppress(Refusal):
                key = parse_agent_key(name)
                if key.driver in drivers:
                    log = runs.log.bound(**agent_log_ids(key))
                    log(
                        "the event log was rolled back: start {} to find its running tasks",
                        str(key),
                    )
                    runs.start_agent(key)
