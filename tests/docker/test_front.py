"""The front end before a pool: runs, frames, calls, the library and downloads of apps in
containers, on the host of the run.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from docker_hosts import AGENT, UNIX_USERS, Host, Hosts
from supervisor_process import PYTHON_PATH, SupervisorProcess, until

HERE = Path(__file__).resolve().parent

from http_browser import Browser, close_all

#: The pool's image with the site's own app, built as in docs/docker-image.md.
IMAGE = "jobscribe-test/front:1"
WHERE = "/usr/lib/python3/dist-packages"


@pytest.fixture(scope="module")
def front_image(pool: Hosts, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, on both hosts."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "front_app.py").write_bytes((HERE / "support" / "front_app.py").read_bytes())
    (folder / "Dockerfile").write_text(f"FROM {AGENT}\nCOPY front_app.py {WHERE}/\n")
    for host in pool.hosts.values():
        host.docker("build", "--quiet", "--network", "none", "--tag", IMAGE, str(folder))
    return IMAGE


@pytest.fixture
def site(
    make_docker_site: Callable[..., SupervisorProcess], docker_sites: Any, front_image: str
) -> Iterator[SupervisorProcess]:
    """Site with capacity for one parallel run on each host."""
    made = docker_sites.make(
        "apps.also=walk=front_app:app",
        "server.plan_hook=front_app:plan",
        "purge.after_secs=1",
        "purge.every_secs=0.5",
        "purge.kept_plans=kept",
        web=True,
        pool={"image": front_image, "host": {"parallel": 1}},
    )
    made.add_environment(
        PYTHONPATH=os.pathsep.join((PYTHON_PATH, str(HERE / "support"))),
        FRONT_PLACE=str(made.place),
    )
    yield made.start()
    close_all()


def agents_of(hosts: dict[str, Host], uid: str, kind: str) -> dict[str, str]:
    """Return the hostnames inside the containers of this user's agents of this kind, by host."""
    labels = (f"jobscribe.uid={uid}", f"jobscribe.kind={kind}")
    return {
        h.name: h.inspect(n)["Config"]["Hostname"]
        for h in hosts.values()
        for n in h.containers(*labels, running=True)
    }


def news(browser: Browser, jid: str) -> Iterator[dict[str, Any]]:
    """Yield the live events of this run that a page receives."""
    ticket = browser.post("/live-ticket")
    headers = {ticket["header"]: ticket["ticket"], "Cookie": browser._cookie}
    with requests.get(
        f"{browser.site.front}/live?computeJid={jid}", headers=headers, stream=True, timeout=60
    ) as live:
        assert live.status_code == 200
        for line in live.iter_lines(chunk_size=1):
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def upload(browser: Browser, content: str) -> None:
    answer = browser.ask("PUT", "/lib-file/walk/given.txt", content.encode())
    assert answer.code == 200, answer


def owners(folder: Path) -> set[int]:
    found = {os.lstat(folder).st_uid}
    for path in (
        Path(top, name) for top, *names in os.walk(folder) for name in itertools.chain(*names)
    ):
        with contextlib.suppress(FileNotFoundError):  # files may vanish while their owners write
            found.add(os.lstat(path).st_uid)
    return found


def test_a_page_with_its_app_in_containers_of_two_hosts(
    site: SupervisorProcess, pool: Hosts
) -> None:
    ann, bob = (Browser(site).sign_in(name) for name in ("ann", "bob"))
    texts = {ann.uid: "of ann", bob.uid: "of bob"}
    # bob already has an agent on the host of the first run, so his own run has no capacity there
    assert (
        bob.post("/stateless-compute", simulationType="walk", method="where", args={})["node"]
        == agents_of(pool.hosts, bob.uid, "sequential")["a"]
    )
    walks, said, unix = {}, {}, {}
    for who in (ann, bob):
        upload(who, texts[who.uid])  # before any process of this user ran
        walks[who.uid] = who.simulation("walkAnimation", "walk", file="given.txt")
        said[who.uid] = who.run(walks[who.uid])
        (unix[who.uid],) = owners(site.root / "user" / who.uid)
    assert len(set(unix.values())) == 2 and all(
        UNIX_USERS[0] <= n <= UNIX_USERS[1] for n in unix.values()
    ), unix

    places = {}
    for who, other in ((ann, bob), (bob, ann)):
        walk = walks[who.uid]
        next(
            n
            for n in news(who, said[who.uid]["computeJid"])
            if (n.get("parallelStatus") or {}).get("frameCount") == 3
        )
        status = who.status(walk)
        assert who.frame(walk, status, 0).code == 200
        (places[who.uid],) = agents_of(pool.hosts, who.uid, "parallel")
        # calls are answered by the user's other agent, on the host of the run
        here = {
            "node": agents_of(pool.hosts, who.uid, "sequential")[places[who.uid]],
            "unix": unix[who.uid],
        }
        for index in range(3):
            frame = who.frame(walk, status, index).json()
            assert frame == {
                "frameIndex": index,
                "frameCount": 3,
                "title": "walk",
                "number": index,
                "content": texts[who.uid],
                **here,
            }
        assert who.post("/analysis-job", **walk, method="where", args={}) == here
        assert who.frame(walk, status, 7).json()["error"] == "frame 7 is not there"
        assert other.frame(walk, status, 0).code == 404
    assert places == {ann.uid: "a", bob.uid: "b"}, "each host has room for one of them"

    assert bob.cancel(walks[bob.uid])["state"] == "canceled"
    (ann.run_dir(walks[ann.uid]) / "go").touch()
    done = ann.finished(walks[ann.uid], ann.status(walks[ann.uid]))
    assert (done["state"], done["frameCount"]) == ("completed", 4), done
    path = "/".join(walks[ann.uid][n] for n in ("simulationType", "simulationId", "report"))
    assert ann.ask("GET", f"/run-log/{path}").body == b"waits\nis over\n"
    assert ann.ask("GET", f"/run-files/{path}").json() == {"files": ["in.json"]}
    assert json.loads(ann.download(walks[ann.uid]).body)["content"] == "of ann"
    # the agent that answered until now is removed: another one takes over
    ((name, node),) = agents_of(pool.hosts, ann.uid, "sequential").items()
    pool.hosts[name].docker("kill", node)
    frame = until(
        lambda: (got := ann.frame(walks[ann.uid], done, 3)).code == 200 and got.json(),
        "a frame without the agent that had made it",
    )
    assert frame["number"] == 3 and frame["unix"] == unix[ann.uid] and frame["node"] != node


def test_results_and_the_library_and_what_is_not_kept(site: SupervisorProcess, pool: Hosts) -> None:
    ann, eve = (Browser(site).sign_in(name) for name in ("ann", "eve"))
    upload(ann, "first")
    look = ann.simulation("lookReport", "walk", file="given.txt")
    first = ann.finished(look)
    here = {"node": agents_of(pool.hosts, ann.uid, "sequential")["a"], "unix": first["unix"]}
    assert (first["state"], first["content"], first["node"]) == (
        "completed",
        "first",
        here["node"],
    ), first
    assert ann.post("/stateless-compute", simulationType="walk", method="where", args={}) == here
    # files that a call leaves in the library are there for the page and for the next run
    assert (
        ann.post(
            "/stateful-compute", simulationType="walk", method="keep", args={"text": "from within"}
        )
        == here
    )
    assert ann.ask("GET", "/lib-file/walk/kept.txt").body == b"from within"
    assert (
        ann.finished(ann.simulation("lookReport", "walk", file="kept.txt"))["content"]
        == "from within"
    )
    # equal inputs give the same run; another file with the same name is another input
    assert ann.finished(look)["computeJobSerial"] == first["computeJobSerial"]
    upload(ann, "second")
    assert ann.finished(look)["content"] == "second"
    assert ann.ask("DELETE", "/lib-file/walk/given.txt").code == 200
    assert [f["name"] for f in ann.ask("GET", "/lib-files/walk").json()["files"]] == ["kept.txt"]
    assert owners(site.root / "user" / ann.uid) == {first["unix"]}, (
        "all of it is the user's, whoever made it"
    )

    (site.place / "free").write_text(eve.uid)
    short = eve.simulation("lookReport", "walk")
    assert eve.finished(short)["state"] == "completed"
    eve.until_state(short, "job_run_purged")
    until(
        lambda: not list(eve.run_dir(short).parent.glob("*")),
        "its files are gone, though they were another unix user's",
    )
    assert ann.run_dir(look).is_dir()
