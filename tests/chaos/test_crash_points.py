"""Real processes kill themselves at every crash point; after a restart, every status is true.

`NEEDS` says what makes a process reach a point. The jobs record their own stamps (see `oracle`),
and the client journals its answers.
"""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from oracle import Oracle
from site_locations import SOAK, new_site
from supervisor_process import SupervisorProcess, jid_of, spec, until

from jobscribe.db.maintenance import online_compaction
from jobscribe.runtime.failpoints import POINTS, VARIABLE, arm, reached

UID = "CrashUid"
DEADLINE_SECS = 60.0
APP = """
from jobscribe.apps.app import App, Model, Prepared

app = App(
    name="plain", title="Plain", version="1", models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("/bin/sh", "-c", run.data["shell"])), result=lambda run: {"answer": "x" * 20000},
)
"""
#: Requests that make a process reach a crash point; every run passes the points not listed here.
NEEDS = {
    "keeper.given": "app",
    "job.prepared": "app",
    "job.computed": "app",
    "result.written": "app",
    "result.renamed": "app",
    "keeper.stopping": "cancel",
    "purge.decided": "purge",
    "purge.renamed": "purge",
    "evidence.marked": "retention",
    "evidence.exchanged": "retention",
    "compaction.completed": "compaction",
    "compaction.marked": "compaction",
    "compaction.replaced": "compaction",
    "compaction.exchanged": "compaction",
    "upload.written": "upload",
    "upload.renamed": "upload",
    "lease.written": "lease",
    "lease.renamed": "lease",
}
SETTINGS = {
    "purge": ("purge.after_secs=0.5", "purge.every_secs=0.2"),
    "retention": ("retention.evidence_secs=0.5", "retention.every_secs=0.2"),
}
#: Points at which the job itself dies: its only exit status is its signal.
OF_THE_JOB = ("job.prepared", "job.computed", "result.written", "result.renamed")
#: At these points the run is lost or reported as never started: its token is used, and nothing
#: runs.
BEFORE_IT_RUNS = ("keeper.consumed", "keeper.given")
#: Number of jobs to submit, so that the n-th passage happens.
JOBS = 3


def _visits() -> list[tuple[str, int]]:
    """Return each crash point with the number of its deadly passage. The supervisor's own start
    uses the first passages of the store's points.
    """
    out = []
    for point in POINTS:
        if point.startswith("supervisor."):
            out += [(point, n) for n in ((2, 3, 4, 5) if SOAK else (4,))]
        else:
            out += [
                (point, n)
                for n in (
                    (1, 2) if SOAK and point not in ("purge.decided", "purge.renamed") else (1,)
                )
            ]
    return out


class Scene:
    """A site whose processes die at a crash point, and a client that repeats its requests until
    they are answered.
    """

    def __init__(self, site: SupervisorProcess, point: str, folder: Path) -> None:
        self.site, self.point, self.need = site, point, NEEDS.get(point, "run")
        self.oracle = Oracle(site)
        self.struck = folder / "struck"
        nap = "sleep 30" if self.need == "cancel" else "sleep 0.1"
        self.runs = [self._run(nap) for _ in range(JOBS)]
        self.uploaded: list[dict[str, Any]] = []
        self.leased: list[list[int]] = []
        self.acknowledged: set[str] = set()

    def _run(self, text: str) -> dict[str, Any]:
        run = self.oracle.job(text, uid=UID, graceSecs=1)
        if self.need != "app":
            return run
        data = {"models": {"m": {}}, "shell": run["command"][2]}
        return spec((), UID, simulationType="plain", computeModel="m", data=data)

    def act(self) -> None:
        """Send all requests of the scene. Requests without an answer are repeated unchanged at the
        next call.
        """
        for n, run in enumerate(self.runs):
            reply = self._asked("run-simulation", reqId=f"request-{n}", run=run)
            if reply is not None and "computeJobSerial" in reply:
                self.acknowledged.add(jid_of(run))
                self.oracle.acknowledged(f"request-{n}", reply)
                if self.need == "cancel" and self.oracle.started(run):
                    self._asked(
                        "run-cancel", reqId=f"cancel-{n}00", uid=UID, computeJid=jid_of(run)
                    )
        if self.need == "upload":
            self._upload()
        if self.need == "compaction" and len(self.acknowledged) == JOBS and self.over():
            self._compact()
        if self.need == "lease":
            said = self._asked(
                "global-resources",
                uid=UID,
                simulationType="plain",
                simulationId="portsid1",
                ports=2,
            )
            if said is not None:
                self.leased.append(said["ports"])

    def _compact(self) -> None:
        if online_compaction.prepare(self.site.root, older_than_secs=0).changed:
            self._asked("log-exchange", keep=False)

    def _upload(self) -> None:
        path = f"/api/lib-file?uid={UID}&simulationType=plain&name=lattice.dat"
        try:
            answer = self.site.ask("PUT", path, b"0123456789" * 30_000)
        except (OSError, http.client.HTTPException):
            return
        if answer.code == 200:
            self.uploaded.append(answer.json())

    def _asked(self, path: str, **body: Any) -> dict[str, Any] | None:
        """Return the answer, or None if there was none or it was retryable."""
        try:
            answer = self.site.ask("POST", f"/api/{path}", json.dumps(body).encode())
        except (OSError, http.client.HTTPException):
            return None
        said: dict[str, Any] = answer.json()
        assert answer.code == 200 or said["retry"], said
        return said if answer.code == 200 else None

    @property
    def hit(self) -> bool:
        """Return whether a process died at the point. Wait for the end of a supervisor."""
        assert self.site.process is not None
        return self.struck.exists() and (
            self.site.process.poll() is not None or self.point.split(".")[0] in _OTHERS
        )

    def over(self) -> bool:
        said = [self._asked("run-status", uid=UID, computeJid=jid_of(run)) for run in self.runs]
        return all(s is not None and s["over"] for s in said)


#: Name prefixes of crash points in processes other than the supervisor; the supervisor survives
#: these.
_OTHERS = ("agent", "keeper", "job", "result")


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Yield a scene whose supervisor has started, or died during its start."""
    point, visit = request.param
    settings = SETTINGS.get(NEEDS.get(point, ""), ())
    site = new_site(
        None,
        "slots.local_sequential=2",
        "apps.also=plain=plain_app:app",
        *settings,
        modules={"plain_app.py": APP},
    )
    scene = Scene(site, point, tmp_path)
    site.add_environment(**{VARIABLE: f"{point}:{visit}:{scene.struck}"})
    try:
        site.process = site.fork_or_launch()
        yield scene
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.mark.parametrize("scene", _visits(), indirect=True, ids=lambda v: f"{v[0]}-{v[1]}")
def test_a_crash_here_loses_nothing_doubles_nothing_and_lies_about_nothing(scene: Scene) -> None:
    def struck() -> bool:
        if scene.site.token == "" and (scene.site.root / "client.json").exists():
            scene.site.read_address()
        if scene.site.token:
            scene.act()
        return scene.hit

    until(struck, f"{scene.point} was reached", DEADLINE_SECS, pause=0.1)
    if scene.site.process is not None and scene.site.process.poll() is None:
        scene.site.process.kill()
    scene.site.stop()
    scene.site.start()

    def over() -> bool:
        scene.act()
        return scene.over() and scene.acknowledged == set(map(jid_of, scene.runs))

    until(over, "everything is over after the restart", DEADLINE_SECS, pause=0.2)
    lost = frozenset(jid for jid in map(jid_of, scene.runs) if _may_fail(scene, jid))
    if scene.need == "purge":
        _check_purged(scene)
    else:
        check_books(scene.site)
    scene.oracle.check(killed=lost)
    if scene.need == "retention":
        _check_evidence(scene)
    if scene.need == "upload":
        _check_uploaded(scene)
    if scene.need == "lease":
        assert scene.leased and all(ports == scene.leased[0] for ports in scene.leased), (
            "the same ports every time"
        )
        assert (
            json.loads((scene.site.root / "leases.json").read_text())[0]["ports"] == scene.leased[0]
        )
    until(
        lambda: not [*scene.site.root.glob("*.new"), *scene.site.root.glob("supervisor-job/*.new")],
        "what was half written is cleared away",
    )


def _may_fail(scene: Scene, jid: str) -> bool:
    """Return whether this run ended in another way than intended. Check that its own token or
    process was hit.
    """
    said = scene.site.post("run-status", uid=UID, computeJid=jid)
    stamps = [s for s in scene.oracle.stamps() if s.token.startswith(f"{jid}/")]
    if said["state"] in ("completed", "job_run_purged") or (
        scene.need == "cancel" and said["state"] == "canceled"
    ):
        return False
    if scene.point in OF_THE_JOB:
        assert (said["state"], said["reason"], said["exit"]["signal"]) == ("error", "signal", 9), (
            said
        )
        assert said["exit"]["source"] == "keeper"
        _check_result(scene, jid)
    else:
        assert scene.point in BEFORE_IT_RUNS, (scene.point, said)
        assert (said["state"], stamps) == ("error", []) and said["reason"] in (
            "lost",
            "startFailed",
        ), said
    return True


def _check_result(scene: Scene, jid: str) -> None:
    """Check that the result is complete or absent."""
    result = scene.site.root / "user" / UID / "plain" / jid.split("-")[1] / "m" / "out.json"
    assert result.exists() == (scene.point == "result.renamed")
    if result.exists():
        assert len(json.loads(result.read_text())["answer"]) == 20000


def _check_purged(scene: Scene) -> None:
    """Check that the folders of purged runs are gone, whatever their name, and that the status says
    so.
    """
    folders = [
        scene.site.root / "user" / UID / "command" / run["simulationId"] for run in scene.runs
    ]
    until(
        lambda: not [p for folder in folders if folder.exists() for p in folder.iterdir()],
        "no directory is left",
        DEADLINE_SECS,
    )
    for run in scene.runs:
        assert (
            scene.site.post("run-status", uid=UID, computeJid=jid_of(run))["state"]
            == "job_run_purged"
        )


def _check_evidence(scene: Scene) -> None:
    """Check that the evidence of all runs goes, and that its names stay."""

    def folders() -> dict[str, bool]:
        return {p.name: p.is_dir() for p in scene.site.root.glob("agent/*/run/[!.]*")}

    until(lambda: not any(folders().values()), "no evidence is left", DEADLINE_SECS)
    assert len(folders()) == JOBS


def _check_uploaded(scene: Scene) -> None:
    """Check that acknowledged files exist and are complete, and that no trace of other uploads is
    visible.
    """
    (file,) = scene.site.ask("GET", f"/api/lib-files?uid={UID}&simulationType=plain").json()[
        "files"
    ]
    assert scene.uploaded and (file["size"], file["sha256"]) == (
        300_000,
        scene.uploaded[0]["sha256"],
    )


def test_every_point_that_is_listed_is_visited_and_every_need_is_of_one() -> None:
    assert {point for point, _ in _visits()} == set(POINTS)
    assert set(NEEDS) <= set(POINTS) and set(OF_THE_JOB) <= set(POINTS)


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no crash point 'nowhere'"):
        arm("nowhere:1:/tmp/struck")


def test_nothing_happens_where_none_is_armed() -> None:
    arm(None)
    for point in POINTS:
        reached(point)
    begun = time.perf_counter()
    for _ in range(100_000):
        reached("supervisor.acted")
    print(f"{(time.perf_counter() - begun) * 10:.1f} ns each")
