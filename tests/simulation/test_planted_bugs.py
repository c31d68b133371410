"""The simulator must be able to fail: it finds each of these planted bugs within a few seeds.

Bugs that need hundreds of seeds are tested with SOAK=1.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import simulator
from sim_bugs import BUGS, RARELY_FOUND, planted

#: Seeds that find a bug which several earlier seeds miss. They are tried first; if one no longer
#: finds its bug, all seeds are tried.
FIRST = {
    "serves_users_in_the_order_of_submission": 23,
    "counts_the_longest_grace_period": 135,
    "starts_a_used_token_again": 34,
    "takes_the_last_reason": 13,
    "tries_again_what_cannot_help": 39,
    "calls_known_what_its_scheduler_does_not_say": 5,
    "blames_a_recorded_stop_without_a_signal_after_a_restart": 4,
    "forgets_over_a_restart_that_it_sent_a_signal": 4,
    "purges_what_runs": 55,
    "forgets_a_queue_limit_over_a_restart": 60,
    "counts_hours_by_the_wall_clock": 8,
    "forgets_hours_over_a_restart": 73,
    "looks_at_hours_once": 9,
    "starts_gangs_that_waited_without_hours": 728,
    "starts_runs_without_hours": 41,
    "dismisses_who_is_needed": 16,
    "starts_agents_without_memory": 16,
    "leaves_runs_on_a_host_that_is_down": 15,
    "gives_back_what_is_kept": 7,
    "goes_on_after_a_cancel": 26,
    "gives_one_network_to_two_gangs": 5,
    "keeps_what_the_platform_did": 26,
    "launches_again_after_a_reboot": 4,
    "tries_again_without_counting": 4,
    "gives_up_a_queue_limit_where_slurm_s_queue_begins": 19,
    "keeps_what_was_decided_on_a_failed_commit": 4,
}
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
        for seed in (FIRST.get(bug.__name__, 0), *range(seeds)):
            try:
                simulator.run(seed)
            except simulator.Violation:
                return
    pytest.fail(f"not found in {seeds} seeds")
