"""Parts fetched from the supervisor. They are the same on any machine."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...protocol.jobs.status import TaskStatus
from .parts import Collected, plain

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Maximum number of attempts (the newest) and of tasks (the first).
ATTEMPTS, TASKS = 5, 20
#: Maximum size of an agent's log; the end is kept.
LOG_BYTES = 256 * 1024
_STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")


def collect(client: "Client", jid: str, out: Collected, output_bytes: int) -> list[dict[str, Any]]:
    """Add all parts about a job. output_bytes: maximum size per stream (the end), 0 for no output.
    Return the tasks by attempt, newest first.
    """
    _fetch(out, "status.json", "the status", lambda: client.status(jid).raw)
    _fetch(out, "why.json", "the diagnosis", lambda: client.why(jid))
    _fetch(out, "record.json", "the index row", lambda: client.trace(jid).get("job"))
    tasks = _tasks(client, jid, out)
    _fetch(out, "events.json", "all events", lambda: client.story(jid))
    _trace(client, jid, out)
    _fetch(out, "metrics.json", "the resource usage of the tasks", lambda: client.metrics(jid))
    _agents(client, tasks, out)
    _fetch(out, "health.json", "the supervisor's health now", client.operating.health)
    _fetch(out, "hosts.json", "the hosts of container drivers now", client.operating.pool)
    _fetch(out, "clusters.json", "the clusters now", client.clusters)
    if output_bytes:
        for task in tasks:
            for stream in _STREAMS:
                _output(client, jid, task, stream, output_bytes, out)
    return tasks


def folder(task: dict[str, Any]) -> str:
    """Return the folder for a task's parts."""
    return f"attempts/{int(task['attempt'])}/{plain(task['role'])}-{int(task['index'])}"


def _fetch(out: Collected, name: str, about: str, ask: Callable[[], Any]) -> Any:
    from ...client.api.errors import ClientError

    out.working(about)
    try:
        answer = ask()
    except ClientError as e:
        out.lacks(name, e.sentence)
        return None
    if answer in (None, [], {}):
        out.lacks(name, "no data")
        return None
    out.add_json(name, answer, about)
    return answer


def _tasks(client: "Client", jid: str, out: Collected) -> list[dict[str, Any]]:
    answer = _fetch(
        out,
        "tasks.json",
        "the tasks of the latest attempt, and all attempts",
        lambda: client.tasks(jid),
    )
    if answer is None:
        return []
    latest = int(answer.get("attempt") or 0)
    found = _select_tasks(answer, out)
    for number in range(latest - 1, max(0, latest - ATTEMPTS), -1):
        earlier = _fetch(
            out,
            f"attempts/{number}/tasks.json",
            f"the tasks of attempt {number}",
            partial(client.tasks, jid, number),
        )
        if earlier is not None:
            found += _select_tasks(earlier, out)
    if latest > ATTEMPTS:
        out.lacks(
            "attempts",
            f"attempts 1 to {latest - ATTEMPTS}: only the newest {ATTEMPTS} are included",
        )
    return found


def _select_tasks(answer: dict[str, Any], out: Collected) -> list[dict[str, Any]]:
    """Return at most TASKS tasks of an attempt, failed ones first."""
    tasks: Sequence[dict[str, Any]] = sorted(
        answer.get("tasks") or [],
        key=lambda t: t.get("state") not in (TaskStatus.FAILED, TaskStatus.HELD),
    )
    if len(tasks) > TASKS:
        out.lacks(
            f"attempts/{answer['attempt']}",
            f"{len(tasks) - TASKS} of {len(tasks)} tasks: files and output of {TASKS} tasks are included, failed ones first",
        )
    return [{**task, "attempt": answer["attempt"]} for task in tasks[:TASKS]]


def _agents(client: "Client", tasks: Sequence[dict[str, Any]], out: Collected) -> None:
    """Add the state and the log's end of each agent that ran these tasks for the job's user."""
    from ...client.api.errors import ClientError

    keys = {str(t["agentKey"]) for t in tasks if t.get("agentKey")}
    if not keys:
        return
    _fetch(
        out,
        "agents.json",
        "the state of its agents now",
        lambda: [a for a in client.operating.agents() if a.get("agent") in keys],
    )
    for number, key in enumerate(sorted(keys)):
        for keeper in (False, True):
            name = f"logs/{number}-{plain(key)}-{'keeper' if keeper else 'agent'}.log"
            out.working(f"the log of {key}")
            try:
                log = client.operating.agent_logs(
                    key, uid=client.uid, keeper=keeper, tail=LOG_BYTES
                )
            except ClientError as e:
                out.lacks(name, e.sentence)
                continue
            if not log.get("text"):
                out.lacks(name, str(log.get("sentence") or "the log is empty"))
                continue
            before = f"; {log['offset']} earlier bytes omitted" if log.get("offset") else ""
            out.add(
                name,
                "text",
                str(log["text"]).encode("utf-8", "backslashreplace"),
                f"the end of the log of {key}{before}",
            )


def _trace(client: "Client", jid: str, out: Collected) -> None:
    answer = _fetch(
        out,
        "trace.json",
        "the timeline, with the lines of all logs",
        lambda: client.trace(jid, logs=True),
    )
    if answer is None:
        return
    timed = sorted(
        [*answer.get("items", []), *answer.get("lines", [])], key=lambda i: float(i.get("at") or 0)
    )
    text = "".join(f"{i.get('source')}: {i.get('text')}\n" for i in timed)
    out.add("trace.txt", "text", text.encode("utf-8", "backslashreplace"), "the timeline as text")
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
        out.lacks(name, "no output, or no longer stored")
        return
    before = f"; {begins} earlier bytes omitted" if begins else ""
    more = f"; {dropped} bytes dropped" if dropped else ""
    out.add(name, "output", data[-limit:], f"output of the job{before}{more}")
