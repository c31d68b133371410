"""The list of planted bugs fits the current code. `python tests/chaos/mutants.py` plants them.

One test for all of them: read in the test, not when each process of pytest-xdist collects it.
"""

from .mutants import misfit, read


def test_each_of_them_can_be_planted_and_has_a_name_of_its_own() -> None:
    mutants = read()
    assert len(mutants) >= 20
    assert len({m.name for m in mutants}) == len(mutants)
    misfits = {m.name: why for m in mutants if (why := misfit(m)) is not None}
    assert misfits == {}
    assert [m.name for m in mutants if m.old == m.new] == []
