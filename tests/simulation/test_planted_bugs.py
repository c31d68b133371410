"""The simulator must be able to fail: it finds each of these planted bugs within a few seeds.

Bugs that need hundreds of seeds are tested with SOAK=1.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import simulator
from sim_bugs import BUGS, RARELY_FOUND, planted
from sim_lease_bugs import LEASE_BUGS

#: Seeds that find a bug which several earlier seeds miss. They are tried first; if one no longer
#: finds its bug, all seeds are tried.
FIRST = {
    "keeps_what_was_decided_on_a_failed_commit": 4,
    "acts_before_it_is_durable": 1,
    "launches_again_after_a_reboot": 4,
    "forgets_what_a_keeper_adopted": 1,
    "names_no_job_of_a_lost_agent": 1,
    "remembers_one_token_of_an_agent": 3,
    "purges_what_runs": 39,
    "keeps_what_a_task_had": 1,
    "forgets_what_gangs_have_at_a_restart": 1,
    "gives_cores_twice": 2,
    "gives_a_port_twice": 2,
    "starts_the_next_attempt_too_early": 6,
    "tries_again_without_counting": 3,
    "tries_again_what_cannot_help": 18,
    "keeps_what_the_platform_did": 94,
    "gives_back_what_is_kept": 2,
    "ends_a_hold_with_another_exit": 2,
    "goes_on_after_a_cancel": 26,
    "loses_word_of_a_hold": 2,
    "gives_one_network_to_two_gangs": 6,
    "dismisses_who_is_needed": 1,
    "starts_agents_without_memory": 1,
    "starts_runs_without_hours": 41,
    "looks_at_hours_once": 41,
    "forgets_hours_over_a_restart": 201,
    "serves_users_in_the_order_of_submission": 90,
    "starts_gangs_that_waited_without_hours": 1369,
    "counts_hours_by_the_wall_clock": 8,
    "calls_known_what_its_scheduler_does_not_say": 5,
    "gives_up_a_queue_limit_where_slurm_s_queue_begins": 19,
    "forgets_a_queue_limit_over_a_restart": 36,
    "signals_a_recorded_stop_without_a_look_for_the_exit": 26,
    "keeps_the_reason_of_a_stop_that_came_too_late": 26,
    "takes_the_last_reason": 13,
    "counts_the_longest_grace_period": 1,
    "blames_a_recorded_stop_without_a_signal_after_a_restart": 30,
    "forgets_over_a_restart_that_it_sent_a_signal": 1,
    "starts_a_used_token_again": 7,
    "forgets_nothing": 2,
    "fails_at_the_first_failure": 3,
    "leaves_runs_on_a_host_that_is_down": 3,
    "forgets_a_sign_in_that_was_faster_than_the_answer": 5,
    "commits_in_an_earlier_epoch": 1,
    "acts_without_its_lease": 4,
    "counts_its_deadline_from_the_answer": 1,
    "reads_an_outcome_that_may_still_change": 1,
    "takes_an_unknown_outcome_for_a_failure": 2,
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
    several = True if bug in LEASE_BUGS else None
    with planted(bug):
        for seed in (FIRST.get(bug.__name__, 0), *range(seeds)):
            try:
                simulator.run(seed, several=several)
            except simulator.Violation:
                return
    pytest.fail(f"not found in {seeds} seeds")
