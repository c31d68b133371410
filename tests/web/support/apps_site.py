"""A site and its users for the tests of the pages of apps."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import supervisor_process
from apps_user import AppsUser
from supervisor_process import SupervisorProcess, until

LAMMPS = Path(__file__).resolve().parents[3] / "etc/examples/lammps"
APPS = "apps.also=odd=odd_app:app,lammps=jobscribe_lammps.plugin:app"
HEAT = "Heat in a plate"

People = Callable[..., AppsUser]
_COUNT = itertools.count()


@contextlib.contextmanager
def apps_site() -> Iterator[SupervisorProcess]:
    """Start a site with all apps. At the end no process of it may be left."""
    path = supervisor_process.PYTHON_PATH
    supervisor_process.PYTHON_PATH = path + os.pathsep + str(LAMMPS)
    site = SupervisorProcess(
        (APPS, "slots.local_sequential=4", "slots.local_parallel=2"),
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        web=True,
    )
    try:
        yield site.start()
    finally:
        left = site.end()
        supervisor_process.PYTHON_PATH = path
    assert left == {}, "processes outlived their keeper"


@contextlib.contextmanager
def apps_users(browser: Any, site: SupervisorProcess) -> Iterator[People]:
    """Yield `people(name)`: a user who has signed in. At the end no browser may have found a problem on
    the page, and nothing runs.
    """
    there: list[AppsUser] = []
    # a test that is repeated finds no simulations of its first try
    suffix = next(_COUNT)

    def user(name: str, **context: Any) -> AppsUser:
        there.append(AppsUser(browser, site, f"{name}{suffix}", **context))
        return there[-1]

    yield user
    troubles = [t for p in there for t in p.troubles]
    for p in there:
        p.close()
    for row in site.post("job-list", active=True)["jobs"]:
        uid = row["jid"].split("-")[0]
        order = {"uid": uid, "computeJid": row["jid"]}
        site.post("run-cancel", reqId=supervisor_process.req_id(), **order)
    until(lambda: not site.post("job-list", active=True)["jobs"], "nothing runs any more")
    assert troubles == [], troubles


def told(site: SupervisorProcess, ann: AppsUser, sid: str, model: str) -> dict[str, Any]:
    """Return the status of the run from the supervisor."""
    jid = f"{ann.uid}-{sid}-{model}"
    reply: dict[str, Any] = site.post("run-status", uid=ann.uid, computeJid=jid)
    return reply
