"""Setup of the agent's log: lines to stdout and a file in its folder, records to the journal if
agent and supervisor share a journal.

The keeper's hello holds the settings: {"format": "text" or "json", "journald": "auto", "on" or
"off", "journalStream": the supervisor's JOURNAL_STREAM}. Keepers of earlier versions send none;
then the format is text.
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
    """Writes each record as a line and to the journal, in the caller's thread."""

    def __init__(self, lines: Direct, journal: Journal) -> None:
        self._lines, self._journal = lines, journal

    def write(self, record: Record) -> None:
        self._lines.write(record)
        self._journal.put(record)


def open_log(
    folder: str, key: AgentKey, agent_id: str, redactor: Redactor, how: dict[str, Any] | None
) -> Log:
    """Return the agent's log with its ids bound. how: settings from the keeper."""
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
