"""Real failures in containers on real hosts: `job why` reports cause, confidence and the next step.

All run at once: on host a each failure is a run of its own. Host b goes down meanwhile; only users
of the plan gold run there.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import explanation_quality
import msgspec
import pytest
from cli_session import check_plain, gang, refused, role
from docker_hosts import NOSHELL, Host, Hosts, sites
from docker_supervisor import (
    AGENT,
    CODE,
    LOST_SECS,
    MEMORY,
    TASK,
    USERS,
    Case,
    DockerSupervisor,
    killed,
)
from image_registry import Registry
from shell_user import client_of
from supervisor_process import SupervisorProcess, jid_of, until

from jobscribe.protocol.jobs.core_report import CoreFile
from jobscribe.runtime.cores import core_pattern

from .test_bad_input import change

#: Memory limit of a container in MiB.
SMALL = 96
EATS = "tail /dev/zero"
CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"
NOWHERE = "/srv/jobscribe-test-nowhere"
OUT = "memory ran out"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    made = Registry(tmp_path_factory.mktemp("registry"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def observed(
    pool: Hosts, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DockerSupervisor]:
    """Supervisor with host a for all users and host b for the plan gold."""
    for host in pool.hosts.values():
        host.well()
    file = tmp_path_factory.mktemp("credentials") / "registries.json"
    registry.credentials(file)
    known, other = json.loads(file.read_text()), registry.host.replace("127.0.0.1", "localhost")
    file.write_text(json.dumps({**known, other: {"username": "puller", "password": CANARY}}))
    room = {"cpu": 32, "memoryMb": MEMORY, "agentsMb": MEMORY, "sequential": 12}
    volumes = {"nowhere": {"source": NOWHERE, "target": "/nowhere"}}
    fields = {
        "host": room,
        "sequential": {"memoryMb": SMALL, "runs": 6},
        "pull": "missing",
        "registries": str(file),
        "volumes": volumes,
    }
    with sites(pool) as made:
        site = made.make("slots.op_run=8", "limits.agent_start_secs=50", pool=fields)
        change(site, hosts={"b": {"plans": ["gold"]}})
        yield DockerSupervisor(site.start(), pool)


@pytest.fixture
def docker_site(observed: DockerSupervisor) -> Iterator[DockerSupervisor]:
    """After each test, check records and job stamps, and that no password was disclosed."""
    yield observed
    for host in observed.hosts.hosts.values():
        host.well()
    print(observed.check())
    assert CANARY not in observed.site.log()


def why(site: SupervisorProcess, run: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the answer as JSON and the printed text, which must be plain."""
    answer, text = explanation_quality.settled(
        lambda: site.post("job-why", uid=run["uid"], computeJid=jid_of(run)),
        lambda: typed(site, "job", "why", jid_of(run)),
    )
    explanation_quality.check(answer, text)
    check_plain(text)
    assert CANARY not in text
    return answer, text


def typed(site: SupervisorProcess, *args: str) -> str:
    """Return the output of a command line in this process (a new process takes half a second)."""
    from jobscribe.cli.main import call

    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = call(["--root", str(site.root), *args])
    assert code == 0, (args, code, out.getvalue(), err.getvalue())
    return out.getvalue()


class Failure(NamedTuple):
    """One failure. text: the command; empty: it waits until the deed is applied. told: cause and
    confidence. words: all must be in the text.
    """

    place: str
    what: str
    text: str
    deed: Callable[[Case], Any] | None
    told: tuple[str, str]
    words: tuple[str, ...]
    user: str | None = None
    fields: dict[str, Any] = {}


EVENTS = "docker events --since 24h --filter "
OF_JOB, OF_AGENT = EVENTS + "label=jobscribe.jid=", EVENTS + "container="
UNSENT = "(not sent by jobscribe"
LESS = ("Ask for more memory", "Reduce its memory use")
_target = core_pattern.parse(Path(core_pattern.PATTERN).read_text(), False)
#: Files of a core are in containers only if the pattern is relative.
CORE = ("core file core.", "jobscribe core stack") if _target.kind == "file" else ("no core",)
FAILURES = (
    *(
        Failure(
            place,
            "a crash with a core",
            "kill -SEGV $$",
            None,
            ("crash", "certain"),
            ("SIGSEGV", *CORE),
            fields={"coreBytes": 1 << 24},
        )
        for place in (AGENT, TASK)
    ),
    Failure(
        AGENT,
        "memory of the main process",
        f"exec {EATS}",
        None,
        ("outOfMemory", "likely"),
        (OUT, "96 MiB", *LESS),
        USERS[0],
    ),
    Failure(
        TASK,
        "memory of the main process",
        f"exec {EATS}",
        None,
        ("outOfMemory", "likely"),
        (OUT, "64 MiB", *LESS),
    ),
    Failure(
        TASK,
        "memory of a child, and exit 0",
        f"{EATS}; exit 0",
        None,
        ("completed", "certain"),
        ("completed: its tasks met", f"but {OUT}", "give it more"),
    ),
    Failure(
        TASK,
        "memory of a child, and exit 1",
        f"{EATS}; exit 1",
        None,
        ("outOfMemory", "likely"),
        (OUT, "with exit code 1", *LESS),
    ),
    Failure(
        AGENT,
        "exit 137",
        "exit 137",
        None,
        ("exit", "possible"),
        ("exit code 137", "return it itself", "no process for that"),
        USERS[1],
    ),
    Failure(
        TASK,
        "exit 137",
        "exit 137",
        None,
        ("exit", "possible"),
        ("exit code 137", "return it itself", "no process for that"),
    ),
    Failure(
        AGENT,
        "kill -9 from inside",
        "",
        lambda c: killed(c.job),
        ("killed", "unknown"),
        (UNSENT, "possible senders of SIGKILL"),
        USERS[1],
    ),
    Failure(
        TASK,
        "kill -9 from inside",
        "",
        lambda c: killed(c.job),
        ("killed", "unknown"),
        (UNSENT, "possible senders of SIGKILL"),
    ),
    Failure(
        AGENT,
        "docker kill",
        "",
        lambda c: c.docker("kill"),
        ("lost", "unknown"),
        ("docker kill", OF_AGENT),
        USERS[2],
    ),
    Failure(
        TASK,
        "docker kill",
        "",
        lambda c: c.docker("kill"),
        ("killed", "unknown"),
        ("docker kill", UNSENT, OF_JOB),
    ),
    Failure(
        AGENT,
        "docker stop",
        "",
        lambda c: c.docker("stop"),
        ("shutdown", "certain"),
        ("its keeper was told to stop", OF_AGENT),
        USERS[3],
    ),
    Failure(
        TASK,
        "docker stop",
        "",
        lambda c: c.docker("stop"),
        ("terminated", "unknown"),
        ("docker stop", UNSENT, OF_JOB),
    ),
    Failure(
        AGENT,
        "docker rm -f",
        "",
        lambda c: c.docker("rm", "-f"),
        ("lost", "unknown"),
        ("removed from outside", OF_AGENT),
        USERS[4],
    ),
    Failure(
        TASK,
        "docker rm -f",
        "",
        lambda c: c.docker("rm", "-f"),
        ("lost", "unknown"),
        ("removed from outside", OF_JOB),
    ),
    Failure(
        TASK,
        "canceled by us",
        "",
        lambda c: c.oracle.heard(c.site.cancel(c.run)),
        ("canceled", "certain"),
        ("canceled by",),
    ),
    Failure(
        TASK,
        "its time limit",
        "",
        None,
        ("timeLimit", "certain"),
        ("its time limit of 1 s", "longer time limit"),
        None,
        {"timeLimitSecs": 1},
    ),
)


def unfit(registry: Registry) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Return runs that cannot start: image, volume and fault, with words of the expected text."""
    other = registry.host.replace("127.0.0.1", "localhost")
    return {
        (f"{registry.host}/theirs:1", "", "imageMissing"): (
            "has no image",
            "docker pull",
            "spelling",
        ),
        (f"{other}/theirs:1", "", "pullDenied"): (
            "refuses image",
            "docker pull",
            "credentials",
        ),
        ("127.0.0.1:1/ours:7", "", "registryUnreachable"): (
            "cannot reach registry",
            "docker pull",
            "network",
        ),
        (NOSHELL, "", "noShell"): (
            "/bin/sh cannot be executed",
            "docker run --rm --entrypoint /bin/sh",
        ),
        ("", "nowhere", "engineRefused"): (NOWHERE, "jobscribe pool check"),
    }


def tried(image: str, volume: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"image": image} if image else {"volumes": [volume]}
    return gang(role("main", "true", memoryMb=64, **asked), retry={"platform": 0})


def explained(
    site: SupervisorProcess, run: dict[str, Any], told: tuple[str, str], words: tuple[str, ...]
) -> str:
    """Return an empty string, or the fault of the answer."""
    answer, text = why(site, run)
    missing = [w for w in words if w not in text]
    return (
        ""
        if (answer["cause"], answer["confidence"]) == told and not missing
        else f"{told}, missing {missing}, in\n{text}"
    )


@pytest.mark.timeout(300)
def test_each_failure_is_told_by_its_cause_with_what_to_do(
    docker_site: DockerSupervisor, registry: Registry, host_b: Host, tmp_path: Path
) -> None:
    site, gold = docker_site.site, {"activePlan": "gold"}
    stays, dies = (Case(docker_site, TASK, **gold).submit() for _ in range(2))
    cases = [
        (f, Case(docker_site, f.place, f.text, uid=f.user, **f.fields).submit()) for f in FAILURES
    ]
    refused_ones = [
        (tried(image, volume), fault, words)
        for (image, volume, fault), words in unfit(registry).items()
    ]
    for run, _, _ in refused_ones:
        site.submit(run)
    docker_site.killed.update(
        case.jid for f, case in cases if f.deed is not None or OUT in f.words or f.fields
    )
    docker_site.killed.add(dies.jid)
    for case in (stays, dies):
        case.started()
    job = dies.job
    host_b.crash()
    killed(job)
    for failure, case in cases:
        if failure.deed is not None:
            case.started()
            failure.deed(case)
    waits = Case(docker_site, TASK, "exit 0", **gold).submit()
    wrong = []
    for failure, case in cases:
        site.wait(case.run, LOST_SECS)
        wrong.append(explained(site, case.run, failure.told, failure.words))
        if "coreBytes" in failure.fields and _target.kind == "file":
            with client_of(site, case.run["uid"]) as client:
                (task,) = client.tasks(case.jid)["tasks"]
                file = msgspec.convert(task["exit"]["core"]["files"][0], CoreFile)
                assert client.get_core(case.jid, file, tmp_path / case.jid).size == file.size
    for run, fault, words in refused_ones:
        site.wait(run, LOST_SECS)
        wrong.append(
            explained(
                site,
                run,
                ("startFailed", "certain"),
                (f"start failure: {fault}", "it never ran", *words),
            )
        )
    until(
        lambda: stays.status()["known"] is False and waits.status()["queueState"] == "host_down",
        "host b is missed",
        LOST_SECS,
    )
    away = ("no contact with", "since", "the last known state")
    wrong.append(explained(site, stays.run, ("running", "certain"), away))
    wrong.append(explained(site, dies.run, ("running", "certain"), away))
    wrong.append(
        explained(
            site,
            waits.run,
            ("host_down", "certain"),
            ("no host is available", "host b", "jobscribe pool check", "a fault of the job"),
        )
    )
    host_b.start()
    site.wait(dies.run, LOST_SECS)
    wrong.append(explained(site, dies.run, ("killed", "unknown"), (UNSENT, OF_JOB)))
    stays.go()
    assert {site.wait(case.run, LOST_SECS)["exit"]["code"] for case in (stays, waits)} == {CODE, 0}
    assert not any(wrong), "\n".join(w for w in wrong if w)


def test_what_is_not_to_be_had_is_refused_or_waited_for(docker_site: DockerSupervisor) -> None:
    """Requests above every host's size and folders that no user may name are refused and leave no
    run.
    """
    site = docker_site.site
    holds = Case(docker_site, TASK).submit().started()
    for wishes, code, said in (
        ({"cpu": 64}, "resourceExceeded", "asks for 64 cores"),
        ({"volumes": ["/etc"]}, "volumeRefused", "/etc"),
    ):
        run = gang(role("main", "true", **wishes))
        assert said in refused(site, run, 400, code)
        answer = site.ask(
            "POST",
            "/api/job-why",
            json.dumps({"uid": run["uid"], "computeJid": jid_of(run)}).encode(),
        )
        assert answer.code == 404 and "jobscribe job list" in answer.json()["advice"], answer
    hungry = gang(role("main", "true", memoryMb=64, cpu=32))
    site.submit(hungry)
    until(lambda: site.status(hungry)["queueState"] == "resources", "it waits")
    assert (
        explained(
            site,
            hungry,
            ("resources", "certain"),
            ("asks for 32 cores: 31 of 32 are free on a", "jobscribe pool show", "it waits"),
        )
        == ""
    )
    site.cancel(hungry)
    holds.go()
    assert (site.wait(hungry)["state"], site.wait(holds.run)["exit"]["code"]) == ("canceled", CODE)
