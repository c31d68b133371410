"""The agent's log: lines to its standard output and to a file in its folder; records to the
journal, where supervisor and agent share one.

The keeper's hello says how: {"format": "text" or "json", "journald": "auto", "on" or "off",
"journalStream": which stream leads to the journal, as the supervisor's own environment has it}. A
keeper of an earlier version says nothing: then it is text.
"""

import os
import socket
import sys
import time
from typing import Any

from ..protocol.ids import AgentKey, agent_log_ids, short_agent
from ..protocol.redaction import Redactor
from ..runtime.log.destinations import RotatingFile, Stream, plain_line
from ..runtime.log.journald import Journal, is_journal
from ..runtime.log.logger import Direct, Form, Log, Output, Record, json_of

FILE_BYTES, FILES = 8 * 1024 * 1024, 2


class _Both:
    """Lines and the journal's records, in the caller's thread."""

    def __init__(self, lines: Direct, journal: Journal) -> None:
        self._lines, self._journal = lines, journal

    def write(self, record: Record) -> None:
        self._lines.write(record)
        self._journal.put(record)


def opened(
    folder: str, key: AgentKey, agent_id: str, redactor: Redactor, how: dict[str, Any] | None
) -> Log:
    """how: as the keeper says it. Each line is the agent's: its ids go with it."""
    how = how or {}
    form: Form = "json" if how.get("format") == "json" else "text"
    line = _json_line if form == "json" else plain_line
    outputs: list[Output] = [
        RotatingFile(os.path.join(folder, "agent.log"), FILE_BYTES, FILES, line)
    ]
    journald, ours = how.get("journald"), False
    if journald == "auto":
        ours = is_journal(1, how.get("journalStream"))
    if not ours:
        outputs.insert(0, Stream(sys.stdout, line=line))
    lines = Direct(*outputs, form=form)
    sink = _Both(lines, Journal("jobscribe-agent")) if ours or journald == "on" else lines
    return Log("agent", redactor, sink).bound(
        **{**agent_log_ids(key), "host": socket.gethostname(), "agent": short_agent(agent_id)}
    )


def _json_line(sentence: str) -> str:
    return json_of(
        Record(
            time.time(),
            os.getpid(),
            0,
            "log",
            "agent/log_setup.py:0:output",
            sentence,
            {},
            level="warning",
        )
    )
