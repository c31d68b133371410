"""Seeded lives of the whole system: every guarantee is checked after every step, and every fault
must really have happened.

100 seeds and two with rare faults; with SOAK=1 the 10,000 of the guarantees; with LIVES any number, as in `make check`.
`tests/simulation/support/run_seeds.py` takes any number too, and shows one step by step.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import run_seeds
import sim_checks
import simulator
from sim_coverage import MUST_HAPPEN, never_happened

RUN = Path(__file__).parent / "support" / "run_seeds.py"
ALL = 10_000 if os.environ.get("SOAK") == "1" else 100
SEEDS = int(os.environ.get("LIVES", ALL))
SLICE = 10
#: Lives with faults that none of the first 100 has: the death of a keeper right after it spawned a
#: process, and the dismissal of a busy agent.
RARE = (104, 151)
#: Lives that all have several supervisors; of the others, 2 of 11 have.
SEVERAL = 2_000 if os.environ.get("SOAK") == "1" else SLICE
#: Lives that found defects of the product, see FOUND.md: seed, and number of supervisors.
FOUND = ((1320, 2), (8420, 2), (9295, 5))

_happened: Counter[str] = Counter()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, SLICE))
def test_lives_keep_the_guarantees(first: int) -> None:
    for seed in range(first, first + SLICE):
        _happened.update(simulator.run(seed).happened)


@pytest.mark.parametrize("seed", RARE)
def test_lives_with_rare_faults_keep_the_guarantees(seed: int) -> None:
    _happened.update(simulator.run(seed).happened)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEVERAL, SLICE))
def test_lives_with_several_supervisors_keep_the_guarantees(first: int) -> None:
    for seed in range(first, first + SLICE):
        _happened.update(simulator.run(seed, several=True).happened)


@pytest.mark.parametrize(("seed", "number"), FOUND)
def test_lives_in_which_several_supervisors_broke_a_guarantee_keep_it(
    seed: int, number: int
) -> None:
    simulator.run(seed, several=True, number=number)


def test_lives_have_two_to_five_supervisors() -> None:
    lives = (simulator.Simulator(seed, several=True) for seed in range(40))
    number = Counter(len(sim.supervisors) for sim in lives)
    assert set(number) == {2, 3, 4, 5} and number[5] > 8, number


@pytest.mark.skipif(SEEDS < ALL, reason="these lives are too few for every fault: unset LIVES")
def test_everything_that_can_go_wrong_did() -> None:
    if not _happened:
        pytest.fail("run this file whole: this test looks at what the others did")
    assert never_happened(_happened) == []


def test_what_never_happened_is_named() -> None:
    assert never_happened(Counter(MUST_HAPPEN[1:])) == [MUST_HAPPEN[0]]


# ---- the simulator itself


def _run(*args: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONHASHSEED": str(hash_seed)
    }
    return subprocess.run(
        [sys.executable, str(RUN), *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "seed",
    [4, 108, *(pytest.param(n, marks=pytest.mark.soak("the same test[4]")) for n in (17, 43))],
)
def test_the_same_seed_is_the_same_life(seed: int) -> None:
    """The log is equal to the last byte: in another process, with other string hashes, and while
    traced.
    """
    here = simulator.run(seed)
    plain, traced = (
        _run("--seed", str(seed), hash_seed=1),
        _run("--seed", str(seed), "--trace", hash_seed=2),
    )
    said = f"seed {seed}: {here.steps} steps, log {here.digest}"
    assert (plain.returncode, plain.stdout.splitlines()) == (0, [said])
    assert (
        traced.stdout.splitlines()[-1] == said and len(traced.stdout.splitlines()) > here.steps / 4
    )


def test_another_seed_is_another_life() -> None:
    assert len({simulator.run(seed).digest for seed in range(5)}) == 5


def test_a_broken_guarantee_comes_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sim_checks.Checks, "_nothing_left", lambda self: self.sim.broken("G19: simulated")
    )
    with pytest.raises(
        simulator.Violation,
        match=r"G19: simulated\nat 4\d\d\.\d+ s, step \d+; to see it again: .*run_seeds\.py --seed 3 --trace",
    ):
        simulator.run(3)


def test_an_error_comes_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sim_checks.Checks, "_nothing_left", lambda self: 1 // 0)
    with pytest.raises(
        simulator.Violation, match=r"ZeroDivisionError: .*\nto see it again: .*--seed 3 --trace"
    ):
        simulator.run(3)


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_many_seeds_tell_what_happened_and_how_far_they_are(jobs: int) -> None:
    done = _run("--seeds", "8", "--first", "100", "--jobs", str(jobs), "--every", "0")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        ("... 0 of 8 seeds, 0 failed, 0 s, ", "... 1 of 8 seeds, 0 failed, ")
    )
    assert lines[-1].startswith("8 seeds from 100, ")
    assert "  the supervisor was told to stop" in done.stdout


@pytest.mark.process
def test_a_failure_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def life(self: simulator.Simulator) -> simulator.Lived:
        return simulator.Lived(Counter(), "", 1 // (self.seed - 4))

    monkeypatch.setattr(simulator.Simulator, "run", life)
    assert run_seeds.many(range(3, 6), 1, 0.0, None, None) == 1
    told = capsys.readouterr().out
    assert told.index("seed 4: ZeroDivisionError") < told.index("... 2 of 3 seeds, 1 failed")


def test_a_life_without_an_end_fails_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(self: simulator.Simulator) -> None:
        while True:
            pass

    monkeypatch.setattr(simulator.Simulator, "run", endless)
    monkeypatch.setattr(run_seeds, "LIFE_SECS", 0.2)
    broken = run_seeds.result_of(3, True, 5).broken
    assert broken is not None
    assert broken.startswith("seed 3: it has not ended after 0.2 s of processor time, in\n")
    assert "in endless\n" in broken
    assert broken.endswith("run_seeds.py --seed 3 --supervisors several --number 5 --trace")
