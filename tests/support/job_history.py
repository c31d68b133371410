"""A checker of recorded requests about one job: is there an order of them, in accordance with their
times, in which each answer is that of a single job? This is linearizability (Herlihy and Wing).

Pure. The job: missing, then pending, running and an end, each entered once; a cancel ends it.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

#: States that a job may enter by itself.
_NEXT: dict[str, tuple[str, ...]] = {
    "missing": (),
    "pending": ("running", "completed", "error"),
    "running": ("completed", "error"),
}


class Request(NamedTuple):
    """One request: its kind, the times of its sending and of its answer, and the answer: the serial and
    the state of the run, with serial 0 for a job that is missing. end, serial, state: None without an
    answer; then it may take effect at any later time, or never.
    """

    kind: Literal["submit", "status", "cancel"]
    begin: float
    end: float | None = None
    serial: int | None = None
    state: str | None = None


class Job(NamedTuple):
    serial: int | None
    state: str


MISSING = Job(0, "missing")


def violation(requests: Sequence[Request]) -> str | None:
    """Return None if the history is linearizable, else the requests that have no order.

    The search remembers (requests in the order, job); it is fast for a few clients of a job.
    """
    history = sorted(
        (r for r in requests if r.kind != "status" or r.end is not None), key=lambda r: r.begin
    )
    answered = frozenset(i for i, r in enumerate(history) if r.end is not None)
    seen: set[tuple[frozenset[int], Job]] = set()
    todo: list[tuple[frozenset[int], Job]] = [(frozenset(), MISSING)]
    longest: frozenset[int] = frozenset()
    while todo:
        done, job = todo.pop()
        if answered <= done:
            return None
        if (done, job) in seen:
            continue
        seen.add((done, job))
        longest = max(longest, done & answered, key=len)
        left = [i for i in range(len(history)) if i not in done]
        # a request that was sent after the answer of another one cannot come before it
        first_end = min((r.end for i in left if (r := history[i]).end is not None), default=0.0)
        todo += [
            (done | {i}, after)
            for i in left
            if history[i].begin <= first_end
            for after in _after(job, history[i])
            # without an answer and an effect, it need not be in the order
            if history[i].end is not None or after != job
        ]
    rest = [history[i] for i in sorted(answered - longest)]
    return f"no order has the answers of {rest[:3]} after those of {len(longest)} others"


def _after(job: Job, request: Request) -> Iterator[Job]:
    """Yield each state of the job after the request, whose answer fits."""
    for now in _reachable(job):
        for then in _effects(now, request):
            if request.end is None:
                yield then
            elif then.state == request.state and then.serial in (None, request.serial):
                yield Job(request.serial, then.state)


def _reachable(job: Job) -> list[Job]:
    return [job, *(Job(job.serial, state) for state in _NEXT.get(job.state, ()))]


def _effects(job: Job, request: Request) -> list[Job]:
    match request.kind:
        case "submit" if job.state == "missing":
            return [Job(None, state) for state in ("pending", *_NEXT["pending"])]
        case "cancel" if job.state in ("pending", "running"):
            # a cancel that comes when the command has ended changes nothing
            return [Job(job.serial, "canceled"), job]
        case _:
            return [job]
