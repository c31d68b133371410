"""`jobscribe job why`: the cause of a job's state, its evidence and the next actions."""

from collections.abc import Iterator
from typing import Any

import click

from ...protocol.jobs.status import ERROR
from ..session.job_names import resolve_job
from ..session.session import command, session

_WIDTH = 9
#: Number of the newest lines of output.
_LAST = 10
#: Causes with an actor: for these, the confidence "unknown" means that the actor is unknown.
_WITH_ACTOR = ("killed", "terminated")
#: Causes without information beyond the exit: only the exit table explains the exit.
_EXIT_ONLY = ("exit", "signal", "launcher")


@command()
@click.argument("name", metavar="JOB")
def why(name: str) -> None:
    """Explain why a job waits, runs, or ended as it did: the cause, its evidence, and the next
    actions.
    """
    s = session()
    jid = resolve_job(s, name)
    answer = s.client_for(jid).why(jid)
    if s.screen.json:
        s.screen.value("jobscribe.job.why/1", answer)
        return
    for line in lines(jid, answer):
        s.screen.line(line)


def lines(jid: str, answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the text output."""
    sentence = str(answer.get("sentence"))
    cause = _cause(answer, sure=not sentence.endswith(f"({answer.get('confidence')})"))
    says = f": {answer['says']}" if answer.get("says") else ""
    yield f"job {jid} {_which(answer)}{answer.get('state')}{cause}: {sentence}{says}"
    failed = answer.get("state") == ERROR or answer.get("cause") in ("debug_hold", "retry_wait")
    known = answer.get("state") == ERROR and answer.get("cause") not in _EXIT_ONLY
    meaning = (
        _diagnosis(answer.get("diagnosis"), sure=not _guessed(answer), known=known)
        if failed
        else []
    )
    todo = step(answer.get("next"))
    if todo:
        yield f"  {'do':<{_WIDTH}}{todo}"
    tries = [str(line) for line in answer.get("try") or []]
    more = [line for line in tries if not todo.startswith(line)]
    for label, values in (*meaning, *_sections(answer, more)):
        for i, value in enumerate(values):
            yield f"  {label if i == 0 else '':<{_WIDTH}}{value}"


def step(found: dict[str, Any] | None) -> str:
    """Return the next action as one line, which a shell accepts if it is a command."""
    if not found:
        return ""
    command, advice = found.get("command"), found.get("advice")
    return "   # ".join(str(part) for part in (command, advice) if part)


def _which(answer: dict[str, Any]) -> str:
    """Return the attempt number, if it is not the first."""
    return f"attempt {answer['attempt']} " if (answer.get("attempt") or 0) > 1 else ""


def _cause(answer: dict[str, Any], *, sure: bool) -> str:
    """Return the cause in brackets, with its confidence unless that is `certain` or part of the
    sentence (`sure` false).
    """
    cause, confidence = answer.get("cause"), answer.get("confidence")
    if not cause or cause == answer.get("state"):
        return ""
    # For a cause with an actor, the actor is the unknown part.
    more = {
        "certain": "",
        None: "",
        "unknown": ", actor unknown" if cause in _WITH_ACTOR else "",
    }
    return f" ({cause}{more.get(confidence, f', {confidence}' if sure else '')})"


def _guessed(answer: dict[str, Any]) -> bool:
    """Return whether the row of the exit table is a guess: its owner and its retry advice may be
    wrong.
    """
    from ...diagnosis.classification import is_guess

    return is_guess(str(answer.get("cause")), answer.get("confidence"))


def _diagnosis(
    found: dict[str, Any] | None, *, sure: bool = True, known: bool = False
) -> list[tuple[str, list[str]]]:
    """Return the lines of the exit table's explanation. A hint has its own line, as it may be
    wrong. The table's excerpt is part of the last lines anyway.

    known: the cause explains more than a row of type and behavior `unknown`.
    """
    if not found:
        return []
    task = f" (task {found['task']})" if found.get("task") else ""
    out = [("means", [f"{found['phrase']} ({found['code']}){task}: {found['reason']}"])]
    if (found["type"], found["behavior"]) == ("unknown", "unknown"):
        out = [] if known else out
    else:
        out[0][1].append(f"{'' if sure else 'if so: '}{found['whose']}; {found['again']}")
    if found.get("hint"):
        out.append(
            (
                "hint",
                [
                    f"perhaps {found['hint']}, from this line of its output:",
                    f"  {found['matched']}",
                ],
            )
        )
    return out


def _python(answer: dict[str, Any]) -> list[str]:
    """Return Python's last exception and its frames, or the faulthandler's output. Innermost frame
    first.
    """
    found, fault = answer.get("traceback"), answer.get("faulthandler")
    if found:
        return [str(found["last"]), *(f"  {frame}" for frame in reversed(found["frames"]))]
    return [str(line) if n == 0 else f"  {line}" for n, line in enumerate(fault or [])]


def _sections(answer: dict[str, Any], more: list[str]) -> list[tuple[str, list[str]]]:
    """Return (label, lines) in display order. Empty sections have no lines. more: further advice."""
    return [
        ("evidence", list(answer.get("evidence") or [])),
        ("not", [line] if (line := "; ".join(answer.get("not") or [])) else []),
        ("said", str(answer.get("terminationMessage") or "").splitlines()),
        ("python", _python(answer)),
        ("last", _last_lines(answer)),
        ("logs", paths(list(answer.get("logs") or []))),
        ("try", more),
    ]


def _last_lines(answer: dict[str, Any]) -> list[str]:
    """Return the newest lines of output, without a traceback that is shown in short."""
    lines = str(answer.get("lastLines") or "").splitlines()
    if answer.get("traceback"):
        at = next((n for n, line in enumerate(lines) if line.startswith("Traceback (")), None)
        lines = lines if at is None else lines[:at]
    return lines[-_LAST:]


def paths(files: list[str]) -> list[str]:
    """Return one text for the files of each folder, which names the folder once.

    Bash expands it: `FOLDER/{stderr.log,exit.json}`.
    """
    folders: dict[str, list[str]] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, []).append(name)
    return [
        f"{folder}/{names[0]}" if len(names) == 1 else f"{folder}/{{{','.join(names)}}}"
        for folder, names in folders.items()
    ]
