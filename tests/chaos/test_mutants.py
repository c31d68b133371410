"""The list of planted bugs fits the current code. `python tests/chaos/mutants.py` plants them."""

import pytest

from .mutants import Mutant, misfit, read

MUTANTS = read()


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 20
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_it_can_be_planted(mutant: Mutant) -> None:
    assert misfit(mutant) is None
    assert mutant.old != mutant.new
