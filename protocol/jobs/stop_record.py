"""The record that a stopped process writes beside its socket. Jobs may write anything there, so
everything is checked and limited. Pure.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from ..ids import Token, printable
from .debugging import Stop, stop_id

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


def parse(data: bytes | None) -> Record | None:
    """Return the record of a file; None if it is none."""
    try:
        return None if not data else msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def names_in(files: Iterable[str]) -> list[str]:
    """Return the names of the stops that have a record among these files, at most `MOST_STOPS`."""
    return [match[1] for match in map(_NAME.match, sorted(files)) if match][:MOST_STOPS]


def _shown(text: str) -> str:
    return printable(text)[:500]
