"""A hundred seeded lives; every guarantee is checked after every step, and every fault must really have happened."""

from collections import Counter

import pytest
from simulator import run

SEEDS = range(100)
#: A run in which one of these never struck has proved nothing about it.
MUST_HAPPEN = (
    "the supervisor was killed", "killed or cut: agent", "killed or cut: keeper", "killed or cut: link", "killed or cut: job",
    "a frame was lost, up", "a frame was lost, down", "a frame was late, up", "a frame was late, down",
    "a frame was repeated, up", "a frame was repeated, down", "frames were reordered, up", "frames were reordered, down",
    "a reply was lost", "a dial failed", "an agent's start failed", "the disk refused a write", "the wall clock jumped",
    "the driver did not know", "the keeper died between taking the token and the spawn",
)

_happened: Counter[str] = Counter()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_keeps_the_guarantees(seed: int) -> None:
    _happened.update(run(seed))


def test_every_fault_really_happened() -> None:
    if not _happened:
        pytest.fail("run this file whole: this test looks at what the others did")
    assert [what for what in MUST_HAPPEN if not _happened[what]] == []
