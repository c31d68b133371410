"""A keeper that cannot start is reported with its own error message, long before the connect
timeout, and the next start is tried.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, shell, until

#: Connect timeout of an agent (seconds). A report that comes sooner does not rely on the timeout.
PATIENCE = 60.0


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    site = make_site(None, f"limits.agent_start_secs={PATIENCE:g}", "limits.agent_start_tries=2")
    site.start()
    yield site


def test_a_folder_that_it_cannot_lock_is_named_and_the_next_run_works(
    site: SupervisorProcess,
) -> None:
    lock = site.root / "agent" / str(site.agent_key()) / "keeper.lock"
    lock.mkdir(parents=True)
    run = shell("exit 0")
    began = time.monotonic()
    said = site.finished(run)
    assert time.monotonic() - began < PATIENCE / 2
    assert (said["state"], said["reason"]) == ("error", "agentStartFailed")
    assert (
        "the keeper ended with exit code 5: the keeper cannot use its folder: Is a directory"
        in said["error"]
        and str(lock) in said["error"]
    )
    assert (
        "a fault of the job: it never started"
        in site.post("job-why", uid=UID, computeJid=jid_of(run))["not"]
    )
    lock.rmdir()
    assert site.finished(shell("exit 0"))["state"] == "completed"


def test_a_template_that_is_killed_is_started_again(site: SupervisorProcess) -> None:
    assert site.finished(shell("exit 0"))["state"] == "completed"
    (template,) = site.titled("template")
    site.kill(template)
    said = site.finished(shell("exit 4", uid="SystemU2"))  # a user without an agent
    assert (said["state"], said["exit"]["code"]) == ("error", 4)
    assert template not in until(lambda: site.titled("template"), "there is another one")
