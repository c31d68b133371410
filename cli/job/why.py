"""`job why`: why a job is as it is."""

from collections.abc import Iterator
from typing import Any

import click

from ..session.job_names import resolve_job
from ..session.session import command, session

_WIDTH = 9
#: Causes that say who did it, or do not: of these "unknown" means that.
_BY_SOMEBODY = ("killed", "terminated")
#: Causes that add nothing to a bare exit: what the exit table says of it is all that is known.
_BARE = ("exit", "signal", "launcher")


@command()
@click.argument("name", metavar="JOB")
def why(name: str) -> None:
    """Explain why a job waits, runs, or ended as it did: the cause, what shows it, and what to do
    next.
    """
    s = session()
    jid = resolve_job(s, name)
    answer = s.client_for(jid).why(jid)
    if s.screen.json:
        s.screen.value("jobscribe.job.why/1", answer)
        return
    for line in told(jid, answer):
        s.screen.line(line)


def told(jid: str, answer: dict[str, Any]) -> Iterator[str]:
    """The answer in lines."""
    sentence = str(answer.get("sentence"))
    cause = _cause(answer, sure=not sentence.endswith(f"({answer.get('confidence')})"))
    yield f"job {jid} {_which(answer)}{answer.get('state')}{cause}: {sentence}"
    failed = answer.get("state") == "error" or answer.get("cause") in ("debug_hold", "retry_wait")
    known = answer.get("state") == "error" and answer.get("cause") not in _BARE
    means = (
        _diagnosis(answer.get("diagnosis"), sure=not _guessed(answer), known=known)
        if failed
        else []
    )
    for label, values in (*means, *_sections(answer)):
        for i, value in enumerate(values):
            yield f"  {label if i == 0 else '':<{_WIDTH}}{value}"


def _which(answer: dict[str, Any]) -> str:
    """Which attempt is meant, where there was more than one."""
    return f"attempt {answer['attempt']} " if (answer.get("attempt") or 0) > 1 else ""


def _cause(answer: dict[str, Any], *, sure: bool) -> str:
    """In brackets, with how sure it is where that is not as sure as can be, and the sentence does
    not say it.
    """
    cause, confidence = answer.get("cause"), answer.get("confidence")
    if not cause or cause == answer.get("state"):
        return ""
    # of what somebody did, what is unknown is who
    more = {
        "certain": "",
        None: "",
        "unknown": ", by whom is not known" if cause in _BY_SOMEBODY else "",
    }
    return f" ({cause}{more.get(confidence, f', {confidence}' if sure else '')})"


def _guessed(answer: dict[str, Any]) -> bool:
    """Does the exit table go by more than is known, so that whose it is, and whether trying again
    helps, may be otherwise?
    """
    from ...diagnosis.classification import is_guess

    return is_guess(str(answer.get("cause")), answer.get("confidence"))


def _diagnosis(
    found: dict[str, Any] | None, *, sure: bool = True, known: bool = False
) -> list[tuple[str, list[str]]]:
    """What the exit table says, in lines; a hint apart, as it may be wrong. Its excerpt is among
    the last lines anyway.

    known: the cause says more than a row of the table that knows nothing of this exit.
    """
    if not found:
        return []
    who = f" (task {found['task']})" if found.get("task") else ""
    lines = [("means", [f"{found['phrase']} ({found['code']}){who}: {found['reason']}"])]
    if (found["type"], found["behavior"]) == ("unknown", "unknown"):
        lines = [] if known else lines
    else:
        lines[0][1].append(f"{'' if sure else 'if that is so: '}{found['whose']}; {found['again']}")
    if found.get("hint"):
        lines.append(
            (
                "hint",
                [f"perhaps {found['hint']}, by this line of its output:", f"  {found['matched']}"],
            )
        )
    return lines


def _python(answer: dict[str, Any]) -> list[str]:
    """Python's last exception and where it came from; or what its faulthandler saw. Innermost
    first, as it is looked for.
    """
    found, fault = answer.get("traceback"), answer.get("faulthandler")
    if found:
        return [str(found["last"]), *(f"  {frame}" for frame in reversed(found["frames"]))]
    return [str(line) if n == 0 else f"  {line}" for n, line in enumerate(fault or [])]


def _sections(answer: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(label, lines) in the order in which they are read; what is empty has no lines."""
    return [
        ("evidence", list(answer.get("evidence") or [])),
        ("not", list(answer.get("not") or [])),
        ("said", str(answer.get("terminationMessage") or "").splitlines()),
        ("python", _python(answer)),
        ("last", str(answer.get("lastLines") or "").splitlines()),
        ("logs", list(answer.get("logs") or [])),
        ("try", list(answer.get("try") or [])),
    ]
