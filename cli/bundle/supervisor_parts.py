"""The parts that the supervisor tells: they are the same from any machine."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .parts import Collected, plain

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Of more attempts the newest, of more tasks the first are taken.
ATTEMPTS, TASKS = 5, 20
#: Of an agent's log the end.
LOG_BYTES = 256 * 1024
_STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")


def collect(client: "Client", jid: str, out: Collected, output_bytes: int) -> list[dict[str, Any]]:
    """All that is told of a job; output_bytes: so much of each stream's end, 0 for none. Returns
    its tasks, by attempt, newest first.
    """
    _told(out, "status.json", "how it stands", lambda: client.status(jid).raw)
    _told(out, "why.json", "why it waits, or ended as it did", lambda: client.why(jid))
    _told(out, "record.json", "its row of the index", lambda: client.trace(jid).get("job"))
    tasks = _tasks(client, jid, out)
    _told(out, "events.json", "every event of it", lambda: client.story(jid))
    _trace(client, jid, out)
    _told(out, "metrics.json", "what its tasks took", lambda: client.metrics(jid))
    _agents(client, tasks, out)
    _told(out, "health.json", "the supervisor's health now", client.operating.health)
    _told(out, "hosts.json", "the hosts of container drivers now", client.operating.pool)
    _told(out, "clusters.json", "the clusters as known now", client.clusters)
    if output_bytes:
        for task in tasks:
            for stream in _STREAMS:
                _output(client, jid, task, stream, output_bytes, out)
    return tasks


def folder(task: dict[str, Any]) -> str:
    """Of a task's parts."""
    return f"attempts/{int(task['attempt'])}/{plain(task['role'])}-{int(task['index'])}"


def _told(out: Collected, name: str, about: str, ask: Callable[[], Any]) -> Any:
    from ...client.api.errors import ClientError

    out.working(about)
    try:
        answer = ask()
    except ClientError as e:
        out.lacks(name, e.sentence)
        return None
    if answer in (None, [], {}):
        out.lacks(name, "there is nothing to tell")
        return None
    out.add_json(name, answer, about)
    return answer


def _tasks(client: "Client", jid: str, out: Collected) -> list[dict[str, Any]]:
    answer = _told(
        out,
        "tasks.json",
        "its tasks in the latest attempt, and all attempts",
        lambda: client.tasks(jid),
    )
    if answer is None:
        return []
    latest = int(answer.get("attempt") or 0)
    found = _chosen(answer, out)
    for number in range(latest - 1, max(0, latest - ATTEMPTS), -1):
        earlier = _told(
            out,
            f"attempts/{number}/tasks.json",
            f"its tasks in attempt {number}",
            partial(client.tasks, jid, number),
        )
        if earlier is not None:
            found += _chosen(earlier, out)
    if latest > ATTEMPTS:
        out.lacks(
            "attempts", f"attempts 1 to {latest - ATTEMPTS}: only the newest {ATTEMPTS} are taken"
        )
    return found


def _chosen(answer: dict[str, Any], out: Collected) -> list[dict[str, Any]]:
    """Those that failed first."""
    tasks: Sequence[dict[str, Any]] = sorted(
        answer.get("tasks") or [], key=lambda t: t.get("state") not in ("failed", "held")
    )
    if len(tasks) > TASKS:
        out.lacks(
            f"attempts/{answer['attempt']}",
            f"{len(tasks) - TASKS} of {len(tasks)} tasks: files and output of {TASKS} are taken, failed ones first",
        )
    return [{**task, "attempt": answer["attempt"]} for task in tasks[:TASKS]]


def _agents(client: "Client", tasks: Sequence[dict[str, Any]], out: Collected) -> None:
    """The state and the ends of the logs of the agents that had these tasks; they are their user's
    own.
    """
    from ...client.api.errors import ClientError

    keys = {str(t["agentKey"]) for t in tasks if t.get("agentKey")}
    if not keys:
        return
    _told(
        out,
        "agents.json",
        "its agents, as they stand now",
        lambda: [a for a in client.operating.agents() if a.get("agent") in keys],
    )
    for number, key in enumerate(sorted(keys)):
        for keeper in (False, True):
            name = f"logs/{number}-{plain(key)}-{'keeper' if keeper else 'agent'}.log"
            out.working(f"the log of {key}")
            try:
                said = client.operating.agent_logs(
                    key, uid=client.uid, keeper=keeper, tail=LOG_BYTES
                )
            except ClientError as e:
                out.lacks(name, e.sentence)
                continue
            if not said.get("text"):
                out.lacks(name, str(said.get("sentence") or "nothing was written"))
                continue
            before = (
                f"; {said['offset']} bytes before it are left out" if said.get("offset") else ""
            )
            out.add(
                name,
                "text",
                str(said["text"]).encode("utf-8", "backslashreplace"),
                f"the end of what {key} wrote{before}",
            )


def _trace(client: "Client", jid: str, out: Collected) -> None:
    answer = _told(
        out,
        "trace.json",
        "its whole way, with the lines of all logs",
        lambda: client.trace(jid, logs=True),
    )
    if answer is None:
        return
    timed = sorted(
        [*answer.get("items", []), *answer.get("lines", [])], key=lambda i: float(i.get("at") or 0)
    )
    text = "".join(f"{i.get('source')}: {i.get('text')}\n" for i in timed)
    out.add("trace.txt", "text", text.encode("utf-8", "backslashreplace"), "the same to be read")
    for gap in answer.get("gaps", []):
        out.lacks("trace.txt", str(gap))


def _output(
    client: "Client",
    jid: str,
    task: dict[str, Any],
    stream: Literal["stdout", "stderr"],
    limit: int,
    out: Collected,
) -> None:
    from ...client.api.errors import ClientError

    name = f"{folder(task)}/{stream}.log"
    out.working(f"{stream} of attempt {task['attempt']}")
    data, begins, dropped = b"", None, 0
    try:
        for part in client.logs(
            jid,
            stream,
            attempt=int(task["attempt"]),
            role=task["role"],
            index=int(task["index"]),
            tail=limit,
        ):
            begins = part.offset if begins is None else begins
            data += part.data
            dropped += part.dropped
            if len(data) >= limit:
                break
    except ClientError as e:
        out.lacks(name, e.sentence)
        return
    if not data:
        out.lacks(name, "nothing was written, or it is not kept any more")
        return
    before = f"; {begins} bytes before it are left out" if begins else ""
    more = f"; {dropped} bytes had been dropped" if dropped else ""
    out.add(name, "output", data[-limit:], f"what the job wrote{before}{more}")
