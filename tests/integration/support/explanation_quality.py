"""Quality checks of `job why`: the text alone must say what happened, how certain that is, and what
to do next.
"""

import re
from collections.abc import Callable
from typing import Any

from jobscribe.diagnosis.causes import CAUSES

#: Terms of the code that users must not see.
_INTERNAL = re.compile(
    r"Traceback|object at 0x|None\b|UNSET|ExitInfo|Refusal|\bNotImplemented|\{\}|\{[a-z_]+\}|<[A-Z][a-z]+\("
)
#: Fields of the JSON that the text contains.
_PARTS = ("state", "cause", "confidence", "reason", "sentence", "evidence", "not", "try", "logs")
#: Advice begins with a verb or is a command.
_DEED = re.compile(
    r"^(jobscribe|docker|scontrol|sacct|journalctl|kubectl|etc/engines|sed|less)\b|^'?[A-Za-z]+\b"
)


def settled(
    ask: Callable[[], dict[str, Any]], print_: Callable[[], str]
) -> tuple[dict[str, Any], str]:
    """Return an answer and the command output for the same state: the answer did not change while
    the command ran.
    """
    after = ask()
    for _ in range(20):
        before, text = after, print_()
        after = ask()
        if all(before[part] == after[part] for part in _PARTS):
            return after, text
    raise AssertionError(f"it goes on changing: {before}, {after}")


def check(answer: dict[str, Any], text: str) -> None:
    """Check one explanation. answer: the JSON. text: the output of `job why` for the same run."""
    cause, confidence = answer["cause"], answer["confidence"]
    assert cause in CAUSES, (cause, answer)
    assert confidence in ("certain", "likely", "possible", "unknown"), answer
    head = text.splitlines()[0]
    assert (
        answer["computeJid"] in head and answer["state"] in head and answer["sentence"] in head
    ), head
    assert (answer["says"] or "") in head, head
    assert cause in text or answer["reason"] in text, text
    for told in (*answer["evidence"], *answer["not"], *answer["try"]):
        assert told.strip() and told in text, (told, text)
    logs = text.partition("\n  logs ")[2]
    for log in answer["logs"]:
        assert "/" in log or log in text, (log, text)
        if "/" not in log:
            continue
        folder, _, name = log.rpartition("/")
        assert logs.count(folder) == 1 and name in logs.partition(folder)[2], (log, text)
    if (step := answer["next"]) is not None:
        told = "   # ".join(part for part in (step["command"], step["advice"]) if part)
        assert text.splitlines()[1] == f"  do       {told}", text
    assert not {"a time limit", "the time limit of the run"} <= set(answer["not"]), answer["not"]
    own = "\n".join([answer["sentence"], *answer["evidence"], *answer["not"], *answer["try"]])
    assert not _INTERNAL.search(own) and "TaskCount" not in own, own
    if answer["state"] != "completed":
        assert answer["evidence"], f"nothing shows it:\n{text}"
        assert answer["try"], f"it does not say what to do:\n{text}"
        assert all(_DEED.match(line) for line in answer["try"]), answer["try"]
    if answer["state"] == "error":
        assert answer["logs"], f"it does not say where its logs are:\n{text}"
