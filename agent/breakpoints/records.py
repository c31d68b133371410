"""The records that stopped processes of a job write. Jobs may write anything there, so everything is
checked and limited.
"""

import os
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from ...protocol.ids import Token, printable
from ...protocol.jobs.debugging import Stop, stop_id
from ...runtime import processes
from ...runtime.execution.folder import read

#: Stops of one execution, and bytes of one record, that are read at most.
MOST_STOPS, MOST_BYTES = 1_000, 64 * 1024
_NAME = re.compile(r"([0-9]{1,10}-[0-9]{1,10})\.json\Z")
_Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """A record, as `staged/jobscribe_pdb.py` writes it. folder: of the socket. started, pids: start
    time and namespace of the pid. rank: of a parallel program; -1 without one. slurm_job, node: of a
    batch job. python: the job's interpreter.
    """

    kind: Literal["breakpoint", "error"]
    file: str
    line: _Number
    function: str
    error: str
    pid: _Number
    host: str
    since: _Moment
    until: _Moment
    attached: bool
    folder: str
    python: str = ""
    slurm_job: str = ""
    node: str = ""
    started: str = ""
    pids: str = ""
    rank: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1

    def stop(self, token: Token, name: str) -> Stop:
        """Return what others may see of it."""
        return Stop(
            id=stop_id(token, name),
            name=name,
            kind=self.kind,
            file=_shown(self.file),
            line=self.line,
            function=_shown(self.function),
            error=_shown(self.error),
            host=_shown(self.node or self.host),
            pid=self.pid,
            since=self.since,
            until=self.until,
            attached=self.attached,
            rank=msgspec.UNSET if self.rank < 0 else self.rank,
        )


def stops(folder: str, token: Token) -> Iterator[Stop]:
    """Yield the stops of one execution. folder: of its sockets."""
    try:
        names = sorted(os.listdir(folder))[:MOST_STOPS]
    except OSError:
        return
    for match in filter(None, map(_NAME.match, names)):
        record = find(folder, match[1])
        if record is not None:
            yield record.stop(token, match[1])


def find(folder: str, name: str) -> Record | None:
    """Return the record of a stop; None if there is none, or if its process is gone."""
    data = read(os.path.join(folder, f"{name}.json"), MOST_BYTES)
    try:
        record = None if not data else msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if record is None or _is_gone(record) else record


def _is_gone(record: Record) -> bool:
    """Return whether the process has ended. False if it is on another machine or not visible."""
    try:
        here = os.readlink("/proc/self/ns/pid") == record.pids and not record.node
    except OSError:
        return False
    return here and str(processes.start_ticks(record.pid)) != record.started


def _shown(text: str) -> str:
    return printable(text)[:500]
