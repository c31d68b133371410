"""`agent list` and `agent logs`: which agents there are, how they stand, and what they say of
themselves.
"""

import time
from typing import Any

import click

from ..client.api.errors import ClientError
from .session.job_names import is_full_jid, resolve_job
from .session.session import command, session
from .terminal.quantities import moment

_HEADS = ("AGENT", "ID", "PHASE", "HOST", "SINCE", "VERSION", "JOBS", "LOG")
NEWEST_BYTES = 4096
#: How often (seconds) a log is looked at that is followed.
LOOK_SECS = 1.0
#: An agent that was told to end has so long (seconds); a longer wait than TELL_SECS is told.
STOP_SECS, TELL_SECS = 60.0, 2.0


@command(name="list")
@click.option("--all-users", is_flag=True, help="Those of everybody.")
def list_agents(all_users: bool) -> None:
    """Show your agents: how each stands and since when, its jobs, where its log lies, and its last
    error.
    """
    s = session()
    rows = s.client().operating.agents(all_users=all_users)
    if s.screen.json:
        s.screen.value("jobscribe.agent.list/1", {"items": rows})
        return
    if not rows:
        s.screen.message(
            "there is no agent yet: the first run of a user starts one"
            + ("" if all_users else "; those of others: --all-users")
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
    help="Go on until you interrupt it, through restarts of agent and supervisor.",
)
@click.option(
    "--keeper",
    is_flag=True,
    help="Of its keeper, the parent of agent and jobs; it writes only when something went wrong.",
)
@click.option("--previous", is_flag=True, help="Of its life before the last start.")
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
    help="An id may be that of anybody's agent. A key or a computeJid in full needs no such option.",
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
    """Print the log of an agent: named by its key, by four characters of its id, or by a job of it.

    On a cluster it comes through the agent itself; while that is not connected, it is the copy that
    was made at its last start.
    """
    if previous and follow:
        raise click.UsageError(
            "--previous and --follow exclude each other: what is over is not followed"
        )
    if everything and tail:
        raise click.UsageError("--all and --tail exclude each other")
    s = session()
    whose = None if all_users or "@" in name or is_full_jid(name) else s.client().uid
    agent = resolve_job(s, name) if name == "last" or is_full_jid(name) else name
    reading = _Reading(s, agent, whose, keeper=keeper, previous=previous)
    shown = reading.begin(
        0 if everything else tail or NEWEST_BYTES, said=not tail and not everything
    )
    while follow or (shown and reading.more):
        shown = reading.go_on()
        if follow and not shown:
            time.sleep(LOOK_SECS)


@command(name="stop")
@click.argument("names", metavar="[AGENT]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of your agents.")
@click.option("--all-users", is_flag=True, help="Agents of other users, too.")
def stop_agents(names: tuple[str, ...], everything: bool, all_users: bool) -> None:
    """End agents that have no runs, and their keepers; return when they are gone.

    An agent that has runs is left alone, and the exit code is 1.

    Agents outlive the supervisor, so stop them before you stop it for good. The next run of a user
    starts an agent again.
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
    left = _until_gone(s, stopping)
    refused += [
        {"agent": a, "code": "deadline", "error": f"{a} has not ended within {STOP_SECS:g} s"}
        for a in left
    ]
    gone = [a for a in stopping if a not in left]
    if s.screen.json:
        s.screen.value("jobscribe.agent.stop/1", {"stopped": gone, "refused": refused})
    for agent in gone:
        s.screen.message(f"{agent} has ended")
    for one in refused:
        s.screen.message(one["error"])
    if refused:
        raise SystemExit(1)


def _until_gone(s: Any, agents: list[str]) -> list[str]:
    """Return the agents that are still there after STOP_SECS."""
    deadline, told = time.monotonic() + STOP_SECS, time.monotonic() + TELL_SECS
    left = list(agents)
    while left and time.monotonic() < deadline:
        there = {
            r["agent"]
            for r in s.client().operating.agents(all_users=True)
            if r["phase"] != "absent"
        }
        left = [a for a in left if a in there]
        if left and time.monotonic() >= told:
            s.screen.message(f"waiting until {', '.join(left)} has ended")
            told = deadline
        if left:
            time.sleep(LOOK_SECS / 5)
    return left


class _Reading:
    """Where a reader of one log stands."""

    def __init__(self, s: Any, agent: str, uid: str | None, **what: bool) -> None:
        self._s, self._agent, self._uid, self._what = s, agent, uid, what
        self._offset, self.more = 0, False

    def begin(self, tail: int, *, said: bool) -> bool:
        piece = self._ask(tail=tail)
        if self._what["previous"]:
            self._s.screen.message(f"[{piece['where']}]") if piece["where"] else None
        elif said and piece["offset"] > 0:
            self._s.screen.message(
                f"[the newest {tail} bytes of {piece['where']}; {piece['offset']} more before them: --all]"
            )
        if not piece["text"]:
            self._silent(piece)
        return self._show(piece)

    def go_on(self) -> bool:
        piece = self._ask()
        if piece["offset"] < self._offset:
            self._s.screen.message(f"[{piece['where']} begins anew: it was rotated]")
        return self._show(piece)

    def _ask(self, tail: int = 0) -> dict[str, Any]:
        asked = self._s.client().operating
        answer: dict[str, Any] = asked.agent_logs(
            self._agent, uid=self._uid, tail=tail, offset=self._offset, **self._what
        )
        return answer

    def _show(self, piece: dict[str, Any]) -> bool:
        self._offset = piece["nextOffset"]
        self.more = not self._what["previous"] and piece["nextOffset"] < piece["size"]
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

    def _silent(self, piece: dict[str, Any]) -> None:
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
