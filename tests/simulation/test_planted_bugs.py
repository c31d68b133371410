"""The simulator must be able to fail: it finds each of these planted bugs within a few seeds.

Bugs that need hundreds of seeds are tested with SOAK=1.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import simulator
from sim_bugs import BUGS, RARELY_FOUND, planted

SOAK = os.environ.get("SOAK") == "1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_it_is_found(bug: Callable[[], Any]) -> None:
    _find(bug, 60)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SOAK, reason="takes many seeds: set SOAK=1")
@pytest.mark.parametrize("bug", RARELY_FOUND, ids=lambda bug: bug.__name__)
def test_it_is_found_in_the_end(bug: Callable[[], Any]) -> None:
    _find(bug, 3000)


def _find(bug: Callable[[], Any], seeds: int) -> None:
    with planted(bug):
        for seed in range(seeds):
            try:
                simulator.run(seed)
            except simulator.Violation:
                return
    pytest.fail(f"not found in {seeds} seeds")
