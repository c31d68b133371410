"""File descriptor limits. The supervisor raises its soft limit to the hard limit, because systemd's
default of 1024 is too low for a thousand agents. Jobs get the usual limit.
"""

import resource
import sys
from collections.abc import Iterator

import pytest
from supervisor_process import SupervisorProcess, shell

SOFT = 200


@pytest.fixture
def narrow() -> Iterator[SupervisorProcess]:
    """Start a supervisor with a low soft limit and a higher hard limit. Only the supervisor
    inherits the low limit.
    """
    site = SupervisorProcess(python=sys.executable)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, before[1]))
    try:
        site.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        yield site
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        site.end()


def test_the_supervisor_raises_its_own_limit_and_nobody_elses(narrow: SupervisorProcess) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard > SOFT, "this test needs a hard limit of descriptors above 200 (ulimit -Hn)"
    run = shell("ulimit -Sn; ulimit -Hn")
    assert narrow.finished(run)["state"] == "completed"
    assert narrow.output(run).body.split() == [str(SOFT).encode(), str(hard).encode()]
    assert resource.prlimit(narrow.pid, resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    (keeper,) = narrow.titled("keeper")
    assert resource.prlimit(keeper, resource.RLIMIT_NOFILE)[0] == SOFT


def test_it_serves_more_connections_than_its_first_limit(narrow: SupervisorProcess) -> None:
    held = [narrow.connection() for _ in range(SOFT + 50)]
    try:
        for connection in held:
            connection.connect()
        assert narrow.ready()["state"] == "ok"
    finally:
        for connection in held:
            connection.close()
