"""Expressions of sites and users: RE2 runs them in linear time, and a rule that RE2 would read
differently from Python, or does not have, is refused with a reason.
"""

import re
import string
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobscribe.diagnosis.exit_table import (
    LINE_CHARS,
    SEEN_CHARS,
    SEEN_LINES,
    Row,
    Table,
    When,
    diagnose,
)
from jobscribe.diagnosis.safe_patterns import TABLE_SIZE, Pattern, any_of, rule_size
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.service.site.exit_table_file import load

SHIPPED = [rule for row in load(None).rows for rule in row.when.log]
#: Each takes `re` years on a line that almost matches.
BACKTRACKING = [
    "(a+)+$",
    "(a*)*b",
    "(a|a)*b",
    r"(\w+\s?)*x",
    "(.*a){20}",
    ".*.*.*x",
    "a?" * 30 + "a" * 30,
    "((a{0,9}){0,9}){0,9}b",
    "(x+x+)+y",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
]
PRINTABLE = st.characters(codec="ascii", exclude_categories=("Cc",))


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("", "1 to 200 characters"),
        ("a" * 201, "1 to 200 characters"),
        ("x*", "must not match an empty line"),
        ("^", "must not match an empty line"),
        ("a|", "must not match an empty line"),
        ("(?=a)b", "must not have lookaround"),
        ("(?!a)b", "must not have lookaround"),
        ("(?<=a)b", "must not have lookaround"),
        ("(?<!a)b", "must not have lookaround"),
        (r"(a)\1", "must not have backreferences"),
        ("(?P<n>a)(?P=n)", "must not have backreferences"),
        ("(?>a+)b", "must not have atomic groups"),
        ("(a)?(?(1)b)", "must not have conditional groups"),
        ("a++b", "must not have possessive repetitions"),
        ("a{,3}b", "write {0,3}"),
        (r"a\Z", "as RE2 has them"),
        ("(", "as RE2 has them"),
        (")", "as RE2 has them"),
        ("a**", "as RE2 has them"),
        ("a{2000}", "as RE2 has them"),
        (r"\p{L}{60}", "as RE2 has them: pattern too large"),
        ("a\ud800", "without surrogate characters"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_its_reason(rule: str, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        rule_size(rule)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("rule", BACKTRACKING)
def test_a_rule_on_which_backtracking_takes_years_ends_at_once(rule: str) -> None:
    pattern = Pattern(rule)
    begun = time.process_time()
    for line in ("a" * LINE_CHARS, "a" * (LINE_CHARS - 1) + "!", "ab x" * (LINE_CHARS // 4)):
        pattern.search(line)
    assert time.process_time() - begun < 1


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SHIPPED), st.data())
def test_shipped_rules_match_the_same_lines_as_python_reads_them(
    rule: str, data: st.DataObject
) -> None:
    line = data.draw(
        st.one_of(
            st.from_regex(rule, alphabet=PRINTABLE),
            st.from_regex(rule, alphabet=PRINTABLE).map(lambda s: s[1:-1]),
            st.text(string.ascii_letters + string.digits + " :.-_", max_size=80),
        )
    )
    line = line.replace("\n", " ")
    assert Pattern(rule).search(line) is (re.search(rule, line) is not None)


def test_alternatives_of_a_row_keep_their_own_flags() -> None:
    both = any_of(("(?i)abc", "xyz"))
    assert both.search("ABC") and both.search("xyz") and not both.search("XYZ")
    assert Pattern("xyz", ignore_case=True).search("XYZ")


def test_text_that_is_not_unicode_is_searched_too() -> None:
    assert Pattern("error").search("\ud800 error") and Pattern("é+$").search("caféé")


def test_the_slowest_table_takes_about_a_second_for_the_longest_output() -> None:
    """The rule is one for which RE2 has to visit most states of its program at each character."""
    rule = "(a?){100}a{100}[xy].{0,20}"
    number = TABLE_SIZE // rule_size(rule)
    rows = tuple(
        Row(code=n, phrase="p", type="user", behavior="unknown", reason="r", when=When(log=(rule,)))
        for n in range(number)
    )
    text = ("a" * (SEEN_CHARS // 12 - 1) + "\n") * SEEN_LINES
    begun = time.process_time()
    diagnose(ExitInfo(code=1, last_lines=text, termination_message=text), Table(rows=rows))
    assert number > 40 and time.process_time() - begun < 5
