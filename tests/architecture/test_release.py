"""The version of the tree, its changelog, the released wheel that the tests run, and the page about
compatibility name the same releases.
"""

import re
from pathlib import Path

from jobscribe.protocol.version import VERSION

TREE = Path(__file__).resolve().parents[2]


def text(path: str) -> str:
    return (TREE / path).read_text(encoding="utf-8")


def test_the_changelog_begins_with_this_version() -> None:
    (version, state) = re.findall(r"^## (\S+)(?: \((.*)\))?$", text("CHANGELOG.md"), re.M)[0]
    assert version == VERSION
    assert state == "not released" or re.fullmatch(r"\d{4}-\d\d-\d\d", state)


def test_the_wheel_in_the_tests_is_of_the_release_before() -> None:
    (previous,) = re.findall(
        r'^PREVIOUS = "(.*)"$', text("tests/integration/support/released_version.py"), re.M
    )
    major, minor, _ = map(int, VERSION.split("."))
    assert previous.startswith(f"{major}.{minor - 1}.")
    wheels = [p.name for p in (TREE / "tests/releases").glob("*.whl")]
    assert wheels == [f"jobscribe-{previous}-py3-none-any.whl"]
    assert f"`{previous}`" in text("tests/releases/README.md")


def test_events_that_the_release_before_cannot_read_are_on_the_page_about_compatibility() -> None:
    listed = text("tests/integration/test_upgrade.py").partition("LATER_EVENTS = {")[2]
    events = re.findall(r'"(\w+)"', listed.partition("}")[0])
    page = text("docs/compatibility.md")
    assert events and [e for e in events if f"`{e}`" not in page] == []
