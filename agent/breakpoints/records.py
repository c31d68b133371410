"""The records of stopped processes of a job, as files on this machine."""

import os
from collections.abc import Iterator

from ...protocol.ids import Token
from ...protocol.jobs.debugging import Stop
from ...protocol.jobs.stop_record import MOST_BYTES, Record, names_in, parse
from ...runtime import processes
from ...runtime.execution.folder import read


def stops(folder: str, token: Token) -> Iterator[Stop]:
    """Yield the stops of one execution. folder: of its sockets."""
    try:
        names = names_in(os.listdir(folder))
    except OSError:
        return
    for name in names:
        record = find(folder, name)
        if record is not None:
            yield record.stop(token, name)


def find(folder: str, name: str) -> Record | None:
    """Return the record of a stop; None if there is none, or if its process is gone."""
    record = parse(read(os.path.join(folder, f"{name}.json"), MOST_BYTES))
    return None if record is None or _is_gone(record) else record


def _is_gone(record: Record) -> bool:
    """Return whether the process has ended. False if it is on another machine or not visible."""
    try:
        here = os.readlink("/proc/self/ns/pid") == record.pids and not record.node
    except OSError:
        return False
    return here and str(processes.start_ticks(record.pid)) != record.started
