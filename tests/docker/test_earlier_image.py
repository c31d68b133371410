"""A pool whose image holds the previous release: its relays, agents, keepers and jobs are served by
this version, and outlive kills of the supervisor. It runs with SOAK=1.
"""

import os
import signal
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker_hosts import Hosts
from released_version import PREVIOUS, RELEASES
from supervisor_process import UID, SupervisorProcess, shell

pytestmark = pytest.mark.skipif("SOAK" not in os.environ, reason="set SOAK=1 (make soak) to run it")
#: The parts of jobscribe in the image, as in etc/docker/build.sh.
PARTS = ("__init__.py", "agent", "apps", "protocol", "runtime")
DOCKERFILE = """
FROM {image}
USER 0
RUN rm -r /opt/jobscribe/lib/jobscribe
COPY jobscribe /opt/jobscribe/lib/jobscribe
RUN python3 -P -m compileall -q --invalidation-mode unchecked-hash /opt/jobscribe/lib/jobscribe
USER 65534:65534
"""


@pytest.fixture
def earlier_image(pool: Hosts) -> Iterator[str]:
    """The image with the agent of the previous release, on the first host."""
    host, tag = pool.hosts["a"], f"jobscribe-test/earlier:{PREVIOUS}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        wheel = RELEASES / f"jobscribe-{PREVIOUS}-py3-none-any.whl"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            archive.extractall(
                folder,
                [n for n in names if n.split("/")[0] == "jobscribe" and n.split("/")[1] in PARTS],
            )
        Path(folder, "Dockerfile").write_text(DOCKERFILE.format(image=pool.image))
        host.docker("build", "--network", "none", "--tag", tag, folder)
    yield tag
    host.docker("rmi", "-f", tag, code=None)


def test_agents_of_an_earlier_image_are_served_across_kills(
    earlier_image: str, make_docker_site: Callable[..., SupervisorProcess]
) -> None:
    site = make_docker_site(
        pool={"hosts": ["a"], "image": earlier_image, "sequential": {"memoryMb": 256, "runs": 2}}
    )
    gated = shell("echo x >>starts; until [ -e gate ]; do sleep 0.1; done; exit 6", uid=UID)
    said = site.submit(gated)
    assert site.running(gated, 60)["known"]
    (agent,) = site.post("agents", uid=UID)["agents"]
    assert agent["version"] == PREVIOUS
    site.stop(signal.SIGKILL)
    site.start()
    site.running(gated, 60)
    assert site.finished(shell("exit 7", uid=UID), 60)["exit"]["code"] == 7
    run_dir = Path(site.status(gated)["runDir"])
    (run_dir / "gate").touch()
    ended = site.wait(gated, 60)
    assert (ended["exit"]["code"], ended["computeJobSerial"]) == (6, said["computeJobSerial"])
    assert (run_dir / "starts").read_text() == "x\n"
    (agent,) = site.post("agents", uid=UID)["agents"]
    assert agent["version"] == PREVIOUS
