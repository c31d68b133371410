"""The logs of the agent and the keeper: both formats, and journal records, written once and with
the job's ids.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobscribe.protocol.ids import execution_log_ids, parse_agent_key, parse_token

pytestmark = pytest.mark.process

KEY, TOKEN = "local.sequential.qsOpzxM9@localhost", "qsOpzxM9-Wd3xLq8B-model/1795250119/2/main/0"
AGENT = """
import json, sys
from jobscribe.agent.log_setup import open_log
from jobscribe.protocol.ids import execution_log_ids, parse_agent_key, parse_token
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log import journald as journal
journal.SOCKET = sys.argv[2]
log = open_log(sys.argv[1], parse_agent_key(sys.argv[4]), "m2cW" + "x" * 28, Redactor(["TOPSECRET"]), json.loads(sys.argv[3]))
log("hello {}", "TOPSECRET", **execution_log_ids(parse_token(sys.argv[5])))
"""
KEEPER = """
import json, sys
from jobscribe.agent.keeper.loop import log as say
say.open_log_file(sys.argv[1], json.loads(sys.argv[2]))
say.log("a cgroup is gone")
"""


def agent_says(
    folder: Path, how: dict[str, Any] | None, *, named: bool = False
) -> tuple[str, str, list[bytes]]:
    """Return an agent's stdout, log file and journal records. `named` declares its stdout as the
    journal's.
    """
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(folder / "socket"))
    journal.setblocking(False)
    with (folder / "stdout").open("w") as stdout:
        info = os.fstat(stdout.fileno())
        how = (
            {**how, "journalStream": f"{info.st_dev}:{info.st_ino}"}
            if how is not None and named
            else how
        )
        subprocess.run(
            [
                sys.executable,
                "-c",
                AGENT,
                str(folder),
                str(folder / "socket"),
                json.dumps(how),
                KEY,
                TOKEN,
            ],
            stdout=stdout,
            check=True,
            timeout=30,
        )
    records = []
    with journal:
        while True:
            try:
                records.append(journal.recv(65536))
            except BlockingIOError:
                return (folder / "stdout").read_text(), (folder / "agent.log").read_text(), records


@pytest.mark.parametrize(
    ("how", "named", "lines", "records"),
    [
        (None, False, 1, 0),
        ({"format": "text", "journald": "auto"}, False, 1, 0),
        ({"format": "text", "journald": "auto"}, True, 0, 1),
        ({"format": "text", "journald": "on"}, False, 1, 1),
        ({"format": "text", "journald": "off"}, True, 1, 0),
    ],
)
def test_what_goes_where_and_nothing_twice(
    tmp_path: Path, how: dict[str, Any] | None, named: bool, lines: int, records: int
) -> None:
    out, file, journal = agent_says(tmp_path, how, named=named)
    assert out.count("\n") == lines and file.count("\n") == 1 and len(journal) == records
    assert "hello <REDACTED>" in file and "TOPSECRET" not in out + file
    op = execution_log_ids(parse_token(TOKEN))["op"].encode()
    for record in journal:
        fields = set(record.splitlines())
        assert {
            b"JOBSCRIBE_JID=qsOpzxM9-Wd3xLq8B-model",
            b"JOBSCRIBE_OP=" + op,
            b"JOBSCRIBE_AGENT=m2cW",
            b"JOBSCRIBE_UID=qsOpzxM9",
            b"JOBSCRIBE_ATTEMPT=2",
            b"SYSLOG_IDENTIFIER=jobscribe-agent",
        } <= fields


def test_lines_of_json_have_all_ids(tmp_path: Path) -> None:
    out, file, _ = agent_says(tmp_path, {"format": "json"})
    said = json.loads(file)
    assert (
        out == file
        and said.pop("where").endswith(":<module>")
        and said.pop("ts").endswith("Z")
        and said.pop("pid")
    )
    assert said == {
        "level": "info",
        "component": "agent",
        "thread": 0,
        "msg": "hello <REDACTED>",
        "uid": "qsOpzxM9",
        "driver": "local",
        "host": socket.gethostname(),
        "agent": "m2cW",
        **execution_log_ids(parse_token(TOKEN)),
    }
    assert parse_agent_key(KEY).uid == said["uid"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_keeper_has_the_same_forms(tmp_path: Path, form: str) -> None:
    config = {"log": {"format": form}, "agent": {"agentKey": KEY, "agentId": "m2cW" + "x" * 28}}
    path = tmp_path / "keeper.log"
    ran = subprocess.run(
        [sys.executable, "-c", KEEPER, str(path), json.dumps(config)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert ran.stderr == path.read_text() and "x" * 8 not in ran.stderr
    if form == "text":
        assert ran.stderr.endswith(":<module> a cgroup is gone\n")
        return
    said = json.loads(ran.stderr)
    assert {k: said[k] for k in ("msg", "component", "uid", "driver", "host", "agent")} == {
        "msg": "a cgroup is gone",
        "component": "keeper",
        "uid": "qsOpzxM9",
        "driver": "local",
        "host": "localhost",
        "agent": "m2cW",
    }
