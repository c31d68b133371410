"""A supervisor that the tests' fork server starts is the same to the kernel as an executed one, and
so are its template and its front end.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_fork_server import ForkedProcess, can_fork
from supervisor_process import PYTHON_PATH, SupervisorProcess, ended, open_files, shell, until

APP = """
from jobscribe.apps.app import App, Model, Prepared

app = App(
    name="added", title="Added", version="1", models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("/bin/true",)), result=lambda run: {},
)
"""
FIELDS = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs")


class Executed(SupervisorProcess):
    def fork_or_launch(self):  # type: ignore[no-untyped-def]
        return self.launch()


#: The uid of another user.
ORDINARY = 65534


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[SupervisorProcess, SupervisorProcess]]:
    with ended() as sites:
        for kind in (SupervisorProcess, Executed):
            sites.append(kind(web=True, who=getattr(request, "param", None)).start())
        yield sites[0], sites[1]


def facts(site: SupervisorProcess, pid: int) -> dict[str, object]:
    """Return what the kernel knows of a process, without what each process has of its own."""
    proc = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    targets = open_files(pid)
    return {
        **{name: status[name].split() for name in FIELDS},
        "title": (proc / "cmdline").read_bytes().rstrip(b"\0").replace(bytes(site.place), b"P"),
        "name": (proc / "comm").read_text(),
        "cwd": os.readlink(proc / "cwd"),
        "program": os.readlink(proc / "exe"),
        "limits": (proc / "limits").read_text(),
        "score": (proc / "oom_score_adj").read_text(),
        "nice": (proc / "stat").read_text().rpartition(")")[2].split()[16],
        "group": ["own" if n == pid else n for n in (os.getpgid(pid), os.getsid(pid))],
        "owner": (proc / "environ").stat().st_uid,
        "parent": int(status["PPid"]) == site.pid,
        "open": sorted(
            re.sub(r"/sessions/[^/]+|\d+", "N", t.replace(str(site.place), "P")) for t in targets
        ),
    }


@pytest.mark.parametrize(
    "pair",
    [
        None,
        pytest.param(
            ORDINARY,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
        ),
    ],
    indirect=True,
)
def test_forked_and_executed_supervisors_are_alike(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    forked, executed = pair
    assert isinstance(forked.process, ForkedProcess) and not isinstance(
        executed.process, ForkedProcess
    )
    for site in pair:
        site.finished(shell("true"))  # with a template
    for name in ("supervisor", "template", "server"):
        a, b = (site.titled(name)[0] for site in pair)

        def same_files(a: int = a, b: int = b) -> bool:
            return facts(forked, a)["open"] == facts(executed, b)["open"]

        # a process opens its log file when it first writes to it
        until(same_files, f"both have the same files open ({name})")
        assert facts(forked, a) == facts(executed, b), name


def test_their_jobs_have_the_same_environment(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    said = []
    for site in pair:
        run = {**shell("env | cut -d= -f1 | sort"), "simulationId": "s0000001"}
        site.finished(run)
        said.append(site.output(run).body)
    assert said[0] == said[1] and b"PATH" in said[0]


def test_both_end_by_a_signal_and_say_so(
    pair: tuple[SupervisorProcess, SupervisorProcess],
) -> None:
    forked, executed = pair
    assert forked.process is not None and forked.process.poll() is None
    assert forked.stop() == executed.stop() == 0
    forked.start()
    assert forked.stop(9) == -9


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "PYTHONHASHSEED", "MALLOC_ARENA_MAX"])
def test_a_variable_that_works_at_the_start_needs_a_start(variable: str) -> None:
    assert can_fork(sys.executable, {"OTHER": "x"}, "/p")
    assert not can_fork("/another/python", {}, "/p")
    assert not can_fork(sys.executable, {variable: "x"}, "/p")


def test_folders_of_modules_may_only_be_added() -> None:
    for path, can in (("/p", True), ("/p:/q", True), ("/q:/p", False), ("/p2", False)):
        assert can_fork(sys.executable, {"PYTHONPATH": path}, "/p") is can


def test_a_forked_supervisor_finds_modules_and_crash_points_of_its_environment(
    tmp_path: Path,
) -> None:
    """The module of an app is only found in the added folder. The supervisor dies at the point."""
    (tmp_path / "added_app.py").write_text(APP)
    struck = tmp_path / "struck"
    with ended() as sites:
        site = SupervisorProcess(("apps.also=added=added_app:app",))
        sites.append(site)
        site.add_environment(
            PYTHONPATH=f"{PYTHON_PATH}{os.pathsep}{tmp_path}",
            PYTHONDONTWRITEBYTECODE="1",
            JOBSCRIBE_CRASHPOINT=f"supervisor.acted:1:{struck}",
        )
        site.process = site.fork_or_launch()
        assert isinstance(site.process, ForkedProcess)
        until(lambda: site.process is not None and site.process.poll() == -9, "it has died")
        assert struck.exists() and not (tmp_path / "__pycache__").exists()
        site.stop()
        site.start()
        assert isinstance(site.process, ForkedProcess)
