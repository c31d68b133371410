"""The distribution of a whole run over the workers of pytest-xdist: which tests share a worker, and
which of them wait for others.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from xdist.scheduler import LoadScopeScheduling

#: The Docker tests that run beside the others of their folder, on other hosts: half of the time.
DOCKER_DEATHS = frozenset(
    {
        "test_cancels.py",
        "test_cut_off.py",
        "test_daemon.py",
        "test_deaths.py",
        "test_gangs.py",
        "test_many.py",
        "test_why_docker.py",
    }
)
#: Files whose tests use a browser all the time.
BROWSERS = frozenset(
    {
        "tests/examples/test_flask_site.py",
        "tests/web/test_page_account.py",
        "tests/web/test_page_apps.py",
        "tests/web/test_page_apps_shown.py",
        "tests/web/test_page_clusters.py",
        "tests/web/test_page_job_parts.py",
        "tests/web/test_page_jobs.py",
        "tests/web/test_page_operations.py",
        "tests/web/test_page_shell.py",
        "tests/web/test_page_submit.py",
    }
)
#: How many of them run at once.
BROWSERS_AT_ONCE = 3


def group(nodeid: str) -> str:
    """Return the group of a test. A group is run by one worker, in order: the tests of a file, or
    of all files that share hosts or a cluster.
    """
    file = nodeid.partition("::")[0]
    _, folder, name = f"{file}//".split("/", 2)
    name = name.strip("/")
    if folder == "docker":
        return "docker, deaths" if name in DOCKER_DEATHS else "docker"
    if folder == "slurm" and name != "test_trial.py":  # it has its own cluster
        return "slurm"
    return file


class WorkerGroups(LoadScopeScheduling):
    """Hands out groups in the order of the command line. Groups with browsers wait until those with
    Docker are done: a browser reloads its pages when Docker adds a network interface.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    @cached_property
    def _indexes(self) -> dict[str, int]:
        """All workers have collected the same tests, in the same order."""
        return {nodeid: n for n, nodeid in enumerate(self.collection or ())}

    def _assign_work_unit(self, node: Any) -> None:
        # A worker keeps its last test until it gets more, so if all must wait, it gets the first.
        scope = next(
            (each for each in self.workqueue if not self._must_wait(each)),
            next(iter(self.workqueue)),
        )
        unit = self.workqueue.pop(scope)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._indexes[test] for test, done in unit.items() if not done])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        units = self.assigned_work[node]
        units[(scope := group(nodeid))][nodeid] = True
        if all(units[scope].values()):
            del units[scope]  # the base class counts all tests of all units after each test
        self._reschedule(node)

    def _must_wait(self, scope: str) -> bool:
        if scope not in BROWSERS:
            return False
        running = list(self._running())
        if sum(each in BROWSERS for each in running) >= BROWSERS_AT_ONCE:
            return True
        return any(each.startswith("docker") for each in (*running, *self.workqueue))

    def _running(self) -> Iterator[str]:
        for units in self.assigned_work.values():
            yield from units
