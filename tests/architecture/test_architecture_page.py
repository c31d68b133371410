"""Lists in ARCHITECTURE.md are those of the code."""

import inspect
import pathlib
import re

import pytest

from jobscribe.drivers.contracts import AgentDriver, TaskDriver

PAGE = pathlib.Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


@pytest.mark.parametrize("contract", [AgentDriver, TaskDriver])
def test_the_page_lists_exactly_the_methods_of_a_driver_contract(contract: type) -> None:
    row = re.search(rf"^\| `{contract.__name__}` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    methods = [name for name, _ in inspect.getmembers(contract, inspect.isfunction)]
    public = {name for name in methods if not name.startswith("_")}
    assert set(re.findall(r"`(\w+)`", row[1])) == public
