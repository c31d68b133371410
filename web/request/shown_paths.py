"""Paths in answers for pages. Users of a front end do not see the file system of the supervisor: a
path below the directory of a job is shown relative to it, other paths of the site are left out.
"""

import re
from typing import Any

import msgspec

#: Fields with the words of users and of their jobs, which stay as they are.
_OF_USERS = frozenset({"spec", "command", "lastLines", "matched", "excerpt", "terminationMessage"})
#: Fields with the path of a folder of the site.
_OF_SITE = frozenset({"evidence", "folder"})
_RUN_DIR = "runDir"
#: A path in a sentence. No character of it can begin another one, so a search takes linear time.
_PATH = r"(?<![^\s'\"`(=:,;])/[^\s'\"`(=:,;]*"
_END = r"(?:/|(?![\w.@-]))"
_RUN_DIRS = r"[A-Za-z0-9]{8}/[a-z][a-z0-9_]*/[A-Za-z0-9]{8}/[A-Za-z]\w*"
#: The same as a whole path, in which there may be spaces.
_WHOLE = re.compile(rf"\A/.*/{_RUN_DIRS}(?:/|\Z)", re.DOTALL)
#: The directory of a job, and the evidence of an execution.
_OF_JOB = re.compile(
    rf"{_PATH}/(?:{_RUN_DIRS}"
    rf"|run/[A-Za-z0-9]{{8}}-[A-Za-z0-9]{{8}}-\w+-[0-9]+-[0-9]+-\w+-[0-9]+){_END}"
)
_OF_AGENT = re.compile(rf"{_PATH}/agent/[\w-]+\.[\w-]+\.[A-Za-z0-9]{{8}}@[^\s'\"`,;:)]+")
_MOST_DEPTH = 64


def body(answer: bytes) -> bytes:
    """Return an answer of the supervisor, which is JSON, for a page."""
    return msgspec.json.encode(value(msgspec.json.decode(answer)))


def value(found: Any, depth: int = 0) -> Any:
    """Return a part of an answer, with the paths that users may see."""
    match found:
        case str():
            return text(found)
        case list() if depth < _MOST_DEPTH:
            return [value(item, depth + 1) for item in found]
        case dict() if depth < _MOST_DEPTH:
            return {k: _field(k, item, depth) for k, item in found.items()}
    return found


def text(sentence: str) -> str:
    """Return a sentence with the paths that users may see."""
    if "/" not in sentence:
        return sentence
    return _OF_AGENT.sub("(folder of the agent)", _OF_JOB.sub("", sentence))


def _field(name: str, found: Any, depth: int) -> Any:
    if name in _OF_USERS:
        return found
    if name in _OF_SITE and isinstance(found, str):
        return None
    if name == _RUN_DIR and isinstance(found, str):
        # empty: the directory of the job; that of a task with a role is below it
        return _WHOLE.sub("", found)
    return value(found, depth + 1)
