"""`jobscribe agent list`, `agent logs` and `agent stop`: state, logs and end of agents."""

import time
from typing import Any

import click

from ..client.api.errors import ClientError
from .session.job_names import is_full_jid, resolve_job
from .session.session import command, session
from .terminal.quantities import moment

_HEADS = ("AGENT", "ID", "PHASE", "HOST", "SINCE", "VERSION", "JOBS", "LOG")
NEWEST_BYTES = 4096
#: Poll interval for a followed log.
POLL_SECS = 1.0
#: Time for an agent to stop. A wait longer than REPORT_SECS is reported to the user.
STOP_SECS, REPORT_SECS = 60.0, 2.0


@command(name="list")
@click.option("--all-users", is_flag=True, help="Agents of all users.")
def list_agents(all_users: bool) -> None:
    """List your agents with phase, start of the phase, jobs, log file and last error."""
    s = session()
    rows = s.client().operating.agents(all_users=all_users)
    if s.screen.json:
        s.screen.value("jobscribe.agent.list/1", {"items": rows})
        return
    if not rows:
        s.screen.message(
            "no agents: the first run of a user starts one"
            + ("" if all_users else "; --all-users shows agents of other users")
        )
        return
    s.screen.table(
        _HEADS,
        [
            [
                r["agent"],
                r["agentId"],
                r["phase"],
                r["host"],
                "-" if r["since"] is None else moment(r["since"]),
                r["version"] or "-",
                str(len(r["jobs"])),
                r["log"] or "-",
            ]
            for r in rows
        ],
    )
    for r in rows:
        if r["lastError"]:
            s.screen.message(f"{r['agent']}: {r['lastError']}")


@command(name="logs")
@click.argument("name", metavar="AGENT")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until you interrupt it, across restarts of agent and supervisor.",
)
@click.option(
    "--keeper",
    is_flag=True,
    help="The log of its keeper, the parent of agent and jobs; it contains only errors.",
)
@click.option("--previous", is_flag=True, help="The log before the last start.")
@click.option(
    "--tail",
    type=click.IntRange(1, 512 * 1024),
    metavar="BYTES",
    help="Only the newest bytes (default: 4096).",
)
@click.option("--all", "everything", is_flag=True, help="From the beginning of the file.")
@click.option(
    "--all-users",
    is_flag=True,
    help="Search the ids of all users' agents. A key or a complete computeJid needs no such option.",
)
def agent_logs(
    name: str,
    follow: bool,
    keeper: bool,
    previous: bool,
    tail: int | None,
    everything: bool,
    all_users: bool,
) -> None:
    """Print the log of an agent, named by its key, by four characters of its id, or by one of its
    jobs.

    On a cluster the log comes through the agent while it is connected; otherwise it is the copy
    made at its last start.
    """
    if previous and follow:
        raise click.UsageError(
            "--previous and --follow cannot be combined: the previous log is complete"
        )
    if everything and tail:
        raise click.UsageError("--all and --tail cannot be combined")
    s = session()
    owner = None if all_users or "@" in name or is_full_jid(name) else s.client().uid
    agent = resolve_job(s, name) if name == "last" or is_full_jid(name) else name
    reader = _LogReader(s, agent, owner, keeper=keeper, previous=previous)
    shown = reader.begin(
        0 if everything else tail or NEWEST_BYTES, report_omitted=not tail and not everything
    )
    while follow or (shown and reader.more):
        shown = reader.read_on()
        if follow and not shown:
            time.sleep(POLL_SECS)


@command(name="stop")
@click.argument("names", metavar="[AGENT]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All your agents.")
@click.option("--all-users", is_flag=True, help="Also agents of other users.")
def stop_agents(names: tuple[str, ...], everything: bool, all_users: bool) -> None:
    """Stop agents without runs, and their keepers, and wait for their end.

    Agents with runs are not stopped, and the exit code is 1.

    Agents outlive the supervisor: stop them before you remove an installation. The next run of a
    user starts an agent again.
    """
    if bool(names) == everything:
        raise click.UsageError("name agents, or give --all")
    s = session()
    operating = s.client().operating
    mine = None if all_users else s.client().uid
    refused: list[dict[str, str]] = []
    stopping: list[str] = []
    for name in names or [
        r["agent"] for r in operating.agents(all_users=all_users) if r["phase"] in ("up", "leaving")
    ]:
        try:
            stopping.append(operating.agent_stop(name, uid=mine))
        except ClientError as e:
            if e.code not in ("agentBusy", "agentUnavailable", "notFound"):
                raise
            refused.append({"agent": name, "code": e.code, "error": e.sentence})
    left = _wait_until_gone(s, stopping)
    refused += [
        {"agent": a, "code": "deadline", "error": f"{a} did not stop within {STOP_SECS:g} s"}
        for a in left
    ]
    gone = [a for a in stopping if a not in left]
    if s.screen.json:
        s.screen.value("jobscribe.agent.stop/1", {"stopped": gone, "refused": refused})
    for agent in gone:
        s.screen.message(f"{agent} has stopped")
    for one in refused:
        s.screen.message(one["error"])
    if refused:
        raise SystemExit(1)


def _wait_until_gone(s: Any, agents: list[str]) -> list[str]:
    """Return the agents that have not stopped after STOP_SECS."""
    deadline, report_at = time.monotonic() + STOP_SECS, time.monotonic() + REPORT_SECS
    left = list(agents)
    while left and time.monotonic() < deadline:
        remaining = {
            r["agent"]
            for r in s.client().operating.agents(all_users=True)
            if r["phase"] != "absent"
        }
        left = [a for a in left if a in remaining]
        if left and time.monotonic() >= report_at:
            s.screen.message(f"waiting for {', '.join(left)} to stop")
            report_at = deadline
        if left:
            time.sleep(POLL_SECS / 5)
    return left


class _LogReader:
    """Reads and prints one log, and keeps the position."""

    def __init__(self, s: Any, agent: str, uid: str | None, **selection: bool) -> None:
        self._s, self._agent, self._uid, self._selection = s, agent, uid, selection
        self._offset, self.more = 0, False

    def begin(self, tail: int, *, report_omitted: bool) -> bool:
        piece = self._fetch(tail=tail)
        if self._selection["previous"]:
            self._s.screen.message(f"[{piece['where']}]") if piece["where"] else None
        elif report_omitted and piece["offset"] > 0:
            self._s.screen.message(
                f"[the newest {tail} bytes of {piece['where']}; {piece['offset']} earlier bytes omitted; --all prints all]"
            )
        if not piece["text"]:
            self._report_empty(piece)
        return self._show(piece)

    def read_on(self) -> bool:
        piece = self._fetch()
        if piece["offset"] < self._offset:
            self._s.screen.message(f"[{piece['where']} starts again: it was rotated]")
        return self._show(piece)

    def _fetch(self, tail: int = 0) -> dict[str, Any]:
        operating = self._s.client().operating
        answer: dict[str, Any] = operating.agent_logs(
            self._agent, uid=self._uid, tail=tail, offset=self._offset, **self._selection
        )
        return answer

    def _show(self, piece: dict[str, Any]) -> bool:
        self._offset = piece["nextOffset"]
        self.more = not self._selection["previous"] and piece["nextOffset"] < piece["size"]
        if not piece["text"]:
            return False
        if self._s.screen.json:
            self._s.screen.record(
                {
                    "type": "output",
                    **{
                        k: piece[k]
                        for k in ("agent", "part", "where", "offset", "nextOffset", "text")
                    },
                }
            )
            return True
        for line in piece["text"].splitlines():
            self._s.screen.line(line)
        return True

    def _report_empty(self, piece: dict[str, Any]) -> None:
        sentence = piece["sentence"] or f"{piece['where'] or 'its log'} is empty"
        if self._s.screen.json:
            self._s.screen.record(
                {
                    "type": "note",
                    "agent": piece["agent"],
                    "note": "empty",
                    "sentence": sentence,
                    "nextOffset": piece["nextOffset"],
                }
            )
        else:
            self._s.screen.message(f"[{sentence}]")
