"""Regular expressions that a site or a user gives and a server process evaluates. Pure.

RE2 matches in time linear in the text and in the size of the compiled program, whatever the
expression. So an expression cannot block the event loop that all jobs share, and no test for
expensive expressions is necessary: a limit of the program's size is enough. RE2 has neither
lookaround nor backreferences. Its `\\d \\w \\s \\b` and their opposites are about ASCII.
"""

import functools
import re

import re2

#: Limit of one rule of an exit table.
RULE_CHARS = 200
#: Limit of the program size of all rules of a table together: at most about a second for all lines
#: of one diagnosis, and usually a thousandth of that.
TABLE_SIZE = 40_000
#: Memory for one compiled expression in bytes. A program of TABLE_SIZE fits.
_MEMORY = 1 << 20
_OPEN_RANGE = re.compile(r"(?<!\\)\{,(\d+)\}")
#: What Python's `re` has and RE2 lacks, by RE2's message.
_LACKS = (
    (re.compile(r"invalid perl operator: \(\?<?[=!]"), "lookaround"),
    (re.compile(r"invalid perl operator: \(\?>"), "atomic groups"),
    (re.compile(r"invalid perl operator: \(\?\("), "conditional groups"),
    (re.compile(r"invalid perl operator: \(\?P$|invalid escape sequence: \\\d"), "backreferences"),
    (re.compile(r"bad repetition operator: [*+?}]\+"), "possessive repetitions"),
)


class Pattern:
    """A compiled expression. size: of its program."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        """Raises ValueError with a sentence about valid expressions."""
        options = re2.Options()
        options.max_mem, options.log_errors = _MEMORY, False
        options.case_sensitive = not ignore_case
        if found := _OPEN_RANGE.search(text):
            raise ValueError(f"must not have {found[0]}: write {{0,{found[1]}}}")
        try:
            self._compiled = re2.compile(text.encode(), options)
        except re2.error as e:
            raise ValueError(_sentence(e.args[0].decode("utf-8", "replace"))) from None
        except UnicodeEncodeError:
            raise ValueError("must be a regular expression without surrogate characters") from None
        self.size = int(self._compiled.programsize)

    def search(self, text: str) -> bool:
        """Return whether some part of the text matches."""
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


def rule_size(rule: str) -> int:
    """Return the program size of a rule for lines of output. Raises ValueError with a sentence about
    valid rules.
    """
    if not rule or len(rule) > RULE_CHARS:
        raise ValueError(f"must be a regular expression of 1 to {RULE_CHARS} characters")
    pattern = Pattern(rule)
    if pattern.search(""):
        raise ValueError("must not match an empty line: it would match every line")
    return pattern.size


@functools.lru_cache(maxsize=1024)
def any_of(rules: tuple[str, ...]) -> Pattern:
    """Return one pattern for valid rules: a single search is faster than one for each rule."""
    return Pattern("|".join(f"(?:{rule})" for rule in rules))


def _sentence(message: str) -> str:
    missing = next((name for rule, name in _LACKS if rule.match(message)), None)
    if missing is not None:
        return f"must not have {missing}: RE2, which matches in linear time, has none"
    return f"must be a regular expression as RE2 has them: {message}"
