"""Upper bound of the work that a regular expression can cause on one line of output, computed when
the expression is loaded.

`re` backtracks, and some expressions can match a line in exponentially many ways. The rules run on
the event loop that all jobs share, so an exit table with an expensive rule is refused. Tests with
sample lines would not cover other lines. Instead this module counts the ways to match a line of
maximum length. It accepts only the syntax for which it can count them: characters, classes, `.`,
`\\d \\w \\s \\b` and their opposites, `^`, `$`, groups, `|`, repetitions, and a leading `(?i)`. One
step compares one word or one character.
"""

import re
from typing import NamedTuple

from .exit_table import LINE_CHARS

#: Limits for one rule on one line (some milliseconds at worst), and for all rules of a table (under
#: a second for all lines together).
RULE_STEPS = 1_500_000
TABLE_STEPS = 15_000_000
RULE_CHARS = 200

_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d+)\}|\{(\d*),(\d*)\})\??")
_SETS = "dDwWsS"
_TOO_MANY = float("inf")


class _Cost(NamedTuple):
    """ways: number of ways to match from one place. steps: steps to try them all. least: minimum
    number of characters. one: is a single character.
    """

    ways: float
    steps: float
    least: int
    one: bool = False


_CHARACTER = _Cost(1, 1, 1, one=True)
_PLACE = _Cost(1, 1, 0)


def steps(rule: str) -> float:
    """Return the maximum number of steps of this rule on one line. Raises ValueError with a
    sentence about valid rules.
    """
    if not rule or len(rule) > RULE_CHARS:
        raise ValueError(f"must be a regular expression of 1 to {RULE_CHARS} characters")
    try:
        compiled = re.compile(rule)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"must be a regular expression: {e}") from None
    if compiled.search(""):
        raise ValueError("must not match an empty line: it would match every line")
    text = rule.removeprefix("(?i)")
    cost, end = _choice(text, 0)
    if end != len(text):
        raise ValueError(
            f"must not have a closing parenthesis without an opening one, at {text[end : end + 10]!r}"
        )
    # an anchored rule fails at once everywhere but at the beginning
    anchored = text.startswith("^") and _sequence(text, 0)[1] == len(text)
    most = (1 if anchored else LINE_CHARS) * cost.steps
    if most > RULE_STEPS:
        raise ValueError(
            "can take too long on a line that almost matches: use at most one of * and + (on a character or class), "
            "limit others as in .{0,40}, and do not repeat a group that contains repetitions or choices",
        )
    return most


def _choice(text: str, at: int) -> tuple[_Cost, int]:
    """Parse alternatives up to the end of their group. Returns the cost and the end."""
    found = []
    while True:
        cost, at = _sequence(text, at)
        found.append(cost)
        if text[at : at + 1] != "|":
            break
        at += 1
    if len(found) == 1:
        return found[0], at
    return _Cost(
        sum(c.ways for c in found), sum(c.steps for c in found), min(c.least for c in found)
    ), at


def _sequence(text: str, at: int) -> tuple[_Cost, int]:
    ways, steps, least, count, word = 1.0, 0.0, 0, 0, False
    single = _PLACE
    while at < len(text) and text[at] not in "|)":
        item, at = _atom(text, at)
        repeated = _QUANTIFIER.match(text, at)
        if repeated:
            item, at = _repeated(item, *_range(repeated)), repeated.end()
        plain = item.one and not repeated
        # a plain word is compared in one step
        steps += 0 if plain and word else ways * item.steps
        ways *= item.ways
        least, count, word, single = least + item.least, count + 1, plain, item
    return (single if count == 1 else _Cost(ways, steps, least)), at


def _atom(text: str, at: int) -> tuple[_Cost, int]:
    match text[at]:
        case "(":
            return _group(text, at)
        case "[":
            return _CHARACTER, _class_end(text, at)
        case "\\":
            letter = text[at + 1]
            if letter in "bB":
                return _PLACE, at + 2
            if letter not in _SETS and letter.isalnum() and letter != "t":
                raise ValueError(
                    f"must not have \\{letter}; allowed are \\d \\w \\s \\b, and \\ before a character that is no letter"
                )
            return _CHARACTER, at + 2
        case "^" | "$":
            return _PLACE, at + 1
        case "{" | "*" | "+" | "?":
            raise ValueError(
                f"must not have {text[at]!r} here: write \\{text[at]} for the character itself"
            )
        case _:
            return _CHARACTER, at + 1


def _group(text: str, at: int) -> tuple[_Cost, int]:
    inside = at + 3 if text.startswith("(?:", at) else at + 1
    if text.startswith("?", inside):
        raise ValueError(
            "must not have groups other than ( ) and (?: ), and (?i) at its very beginning"
        )
    cost, end = _choice(text, inside)
    return cost._replace(one=False), end + 1


def _class_end(text: str, at: int) -> int:
    at += 2 if text.startswith("[^", at) else 1
    first = True
    while first or text[at] != "]":
        at += 2 if text[at] == "\\" else 1
        first = False
    return at + 1


def _range(found: re.Match[str]) -> tuple[int, int]:
    sign, exactly, least, most = found.groups()
    if sign:
        return (1 if sign == "+" else 0), (1 if sign == "?" else LINE_CHARS)
    if exactly:
        return int(exactly), int(exactly)
    return int(least or 0), int(most) if most else LINE_CHARS


def _repeated(item: _Cost, least: int, most: int) -> _Cost:
    if item.least == 0 and most > 1:
        raise ValueError("must not repeat a part that can be empty")
    most = min(most, LINE_CHARS // max(1, item.least))
    ways, steps, more = 0.0, 1.0, 1.0
    for number in range(most + 1):
        ways += more if number >= least else 0
        steps += more * item.steps
        more *= item.ways
        if more > RULE_STEPS:
            return _Cost(_TOO_MANY, _TOO_MANY, 0)
    return _Cost(max(ways, 1.0), steps, least * item.least)
