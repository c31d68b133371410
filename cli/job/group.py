"""Groups of runs: `jobscribe job group`, and the group forms of `job submit`, `job wait` and `job
cancel`.
"""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ...protocol.api.job_arrays import Indices, format_indices, parse_indices
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ..session.job_names import resolve_group
from ..session.request_progress import show_progress
from ..session.session import Session, command, session
from ..submission.quota_warning import warn_of_quota

if TYPE_CHECKING:
    from ...client.api.replies import GroupRun, GroupState
    from ...client.sync_client import Client

TIMED_OUT = 124
_COUNTED = ("pending", "running", "completed", "canceled", "error")
_STATUSES = [*_COUNTED, "failed"]
#: Maximum width of a list of indices in a table.
_WIDTH = 60


def submit_array(
    s: Session,
    words: Sequence[str],
    indices: str,
    group: str | None,
    fields: dict[str, Any],
    quiet: bool,
) -> None:
    """Submit one run per index in one request, and print the group."""
    count = len(parse_indices(indices).numbers)
    uid, sid = resolve_group(s, group) if group is not None else (None, None)
    client = s.client() if uid is None else s.client_for(uid)
    spec = client.spec(words, simulation_id=sid, **fields)

    def describe(observer: "Client") -> str:
        return (
            f"{min(count, observer.group(spec.simulation_id, limit=0).total)} of {count} submitted"
        )

    with show_progress(s, client, describe):
        answer = client.submit_array(spec, indices)
    if s.screen.json:
        s.screen.value("jobscribe.job.submit-array/1", answer)
    else:
        s.screen.line(answer["group"])
        warn_of_quota(s, answer)
    for refused in answer["refused"]:
        s.screen.message(f"index {refused['index']}: {refused['error']}")
    if answer["refusedCount"] > len(answer["refused"]):
        s.screen.message(f"and {answer['refusedCount'] - len(answer['refused'])} more")
    if not quiet and not s.screen.json:
        _hints(s, answer)
    if answer["refusedCount"]:
        raise SystemExit(125)


def _hints(s: Session, answer: dict[str, Any]) -> None:
    states = ", ".join(f"{n} {state}" for state, n in answer["states"].items())
    s.screen.message(f"{answer['accepted']} of {answer['count']} submitted ({states})")
    for verb, about in (
        ("group", "show their status"),
        ("wait --group", "wait for all of them"),
        ("cancel --group", "cancel them"),
    ):
        s.screen.message(
            f"  jobscribe job {verb} {answer['group']}{s.supervisor_options()}   # {about}"
        )


# ---- job group


@command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--failed", is_flag=True, help="List the runs that ended without completing.")
@click.option("--status", type=click.Choice(_STATUSES), help="List the runs with this status.")
@click.option(
    "-q",
    "quiet",
    is_flag=True,
    help="Print only computeJids, one per line: of the listed runs, or of all runs.",
)
def group(names: tuple[str, ...], failed: bool, status: str | None, quiet: bool) -> None:
    """Show the status of all runs of an array or simulation. GROUP is its simulation id, the name
    printed by `job submit`, or one of its jobs.
    """
    if failed and status is not None:
        raise click.UsageError("--failed means --status failed; give only one of them")
    wanted = "failed" if failed else status
    s = session()
    items = []
    for name in names:
        uid, sid = resolve_group(s, name)
        client = s.client_for(uid)
        if quiet and not s.screen.json:
            for run in client.group_runs(sid, status=wanted):
                s.screen.line(run.compute_jid)
            continue
        state, runs = _read(s, client, sid, wanted or "failed")
        if s.screen.json:
            items.append({**state.raw, "runs": runs})
        else:
            _print(s, state, runs, wanted)
    if s.screen.json:
        s.screen.value("jobscribe.job.group/1", {"items": items})


def _read(
    s: Session, client: "Client", sid: str, status: str
) -> "tuple[GroupState, list[GroupRun]]":
    """Return the group and all its runs with this status."""
    begun = time.monotonic()
    first = page = client.group(sid, status=status, limit=1000)
    runs = list(page.runs)
    while page.next is not None:
        s.screen.progress(f"{len(runs)} runs read", time.monotonic() - begun)
        page = client.group(sid, status=status, after=page.next, limit=1000)
        runs += page.runs
    return first, runs


def _print(s: Session, state: "GroupState", runs: "list[GroupRun]", wanted: str | None) -> None:
    counts = [str(state.counts.get(status, 0)) for status in _COUNTED]
    s.screen.table(
        ("GROUP", "TOTAL", *(c.upper() for c in _COUNTED)),
        [[state.group, str(state.total), *counts]],
    )
    if not runs:
        return
    s.screen.line("")
    if wanted is None:
        s.screen.table(("STATUS", "EXIT", "RUNS", "INDICES"), _summary(runs))
    else:
        rows = [
            [
                r.compute_jid,
                "-" if r.index is None else str(r.index),
                r.state,
                _exit(r),
                r.error or "-",
            ]
            for r in runs
        ]
        s.screen.table(("JOB", "INDEX", "STATUS", "EXIT", "ERROR"), rows)


def _summary(runs: "Iterable[GroupRun]") -> list[list[str]]:
    """Return one row per outcome, the most frequent first."""
    alike: dict[tuple[str, str], list[GroupRun]] = {}
    for run in runs:
        alike.setdefault((run.state, _exit(run)), []).append(run)
    ordered = sorted(alike.items(), key=lambda item: -len(item[1]))
    return [[state, exit_, str(len(found)), _indices(found)] for (state, exit_), found in ordered]


def _indices(runs: "Sequence[GroupRun]") -> str:
    numbers = format_indices(Indices(tuple(sorted({r.index for r in runs if r.index is not None}))))
    text = ",".join(
        filter(None, [numbers, *(split_jid(r.compute_jid)[2] for r in runs if r.index is None)])
    )
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _exit(run: "GroupRun") -> str:
    exit_ = run.exit or {}
    if exit_.get("signal") is not None:
        return f"signal {exit_['signal']}"
    if run.reason in (None, "exit") and exit_.get("code") is not None:
        return f"code {exit_['code']}"
    return run.reason or "-"


# ---- job wait --group, job cancel --group


def wait_for_groups(s: Session, names: Sequence[str], timeout: float | None) -> None:
    """Wait, then exit with the code of the first run that did not complete, 0, or 124."""
    begun = time.monotonic()
    states = [
        (uid, _wait_for(s, s.client_for(uid), sid, begun, timeout))
        for uid, sid in [resolve_group(s, name) for name in names]
    ]
    codes = [_code(s.client_for(uid), state) for uid, state in states]
    if s.screen.json:
        items = [
            {**state.raw, "exitCode": code if state.over else None}
            for (_, state), code in zip(states, codes, strict=True)
        ]
        s.screen.value("jobscribe.job.wait-group/1", {"items": items})
    else:
        for (_, state), code in zip(states, codes, strict=True):
            if code:
                s.screen.message(_sentence(state))
    late = any(not state.over for _, state in states)
    raise SystemExit(TIMED_OUT if late else next((c for c in codes if c), 0))


def _wait_for(
    s: Session, client: "Client", sid: str, begun: float, timeout: float | None
) -> "GroupState":
    """Return the group when its runs are over, or when the timeout has passed."""
    step = 2.0
    while True:
        left = (
            step if timeout is None else min(step, max(0.0, timeout - (time.monotonic() - begun)))
        )
        state = client.wait_group(sid, timeout=left)
        if state.over or (timeout is not None and time.monotonic() - begun >= timeout):
            return state
        s.screen.progress(f"waiting for {_sentence(state)}", time.monotonic() - begun)
        step = 5.0


def _code(client: "Client", state: "GroupState") -> int:
    if not state.over:
        return TIMED_OUT
    runs = client.group(state.simulation_id, status="failed", limit=1).runs if state.failed else []
    return runs[0].shell_code if runs else 0


def _sentence(state: "GroupState") -> str:
    running = state.counts.get("running", 0)
    ending = state.busy - running - state.counts.get("pending", 0)
    now = ", ".join(
        f"{n} {state_}" for n, state_ in ((running, "running"), (ending, "stopping")) if n > 0
    )
    return (
        f"{state.group}: {state.ended} of {state.total} over, {state.failed} of them not completed"
        + (f"; {now}" if now else "")
    )


def cancel_groups(
    s: Session, names: Sequence[str], indices: str | None, status: str | None, reason: str
) -> None:
    """Cancel the runs of the groups, limited to `indices` and `status` if given."""
    if indices is not None and parse_indices(indices).at_once is not None:
        raise Refusal(
            "badRequest",
            "--indices of a cancel cannot have a % limit: it only applies to submissions",
        )
    answers = []
    for uid, sid in [resolve_group(s, name) for name in names]:
        client = s.client_for(uid)
        with show_progress(
            s,
            client,
            lambda observer, sid=sid: f"canceling: {_sentence(observer.group(sid, limit=0))}",  # type: ignore[misc]
        ):
            answer = client.cancel_group(sid, indices=indices, status=status, reason=reason)
        answers.append(answer)
        if not s.screen.json:
            s.screen.message(_canceled(answer))
    if s.screen.json:
        s.screen.value("jobscribe.job.cancel-group/1", {"items": answers})


def _canceled(answer: dict[str, Any]) -> str:
    text = f"{answer['group']}: {answer['canceled']} canceled"
    if answer["over"]:
        text += f", {answer['over']} were over before"
    return text + (f", {answer['missing']} do not exist" if answer["missing"] else "")
