"""A supervisor with the sbatch driver for a whole test file, with helpers for its API, its command
line, and direct checks of Slurm.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from login_nodes import Users
from slurm_cluster import Slurm, sites
from supervisor_process import PYTHON_PATH, Answer, SupervisorProcess, jid_of, req_id, spec, until

from jobscribe.runtime import processes

ALICE = "AliceAAA"
#: Five times the slowest step on a busy machine.
SECS = 150.0
#: Texts that no user output may contain.
TRACES = ("Traceback", 'File "', "Error(", "object at 0x")


class SlurmSupervisor:
    """A running supervisor. ALICE's agent on the cluster `lab` starts with the first submission."""

    def __init__(self, site: SupervisorProcess, slurm: Slurm, users: Users) -> None:
        self.site, self.slurm, self.users = site, slurm, users

    # ---- runs

    def run(self, command: str, **fields: Any) -> dict[str, Any]:
        return spec(["/bin/sh", "-c", command], ALICE, **{"graceSecs": 2.0, **fields})

    def gang(self, *roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
        run = spec([], ALICE, roles=list(roles), **{"graceSecs": 2.0, **fields})
        del run["command"]
        return run

    def app(
        self, app: str, model: str, kind: str, batch: dict[str, Any], **values: Any
    ) -> dict[str, Any]:
        run = spec((), ALICE, simulationType=app, computeModel=model, jobRunMode=kind, batch=batch)
        return {
            **run,
            "data": {
                "simulationType": app,
                "simulationId": run["simulationId"],
                "report": model,
                "models": {model: values},
            },
        }

    def until(self, run: dict[str, Any], true: Callable[[dict[str, Any]], Any], what: str) -> Any:
        """Return the first true result of `true` for its status; the run must not end before."""

        def look() -> Any:
            said = self.site.status(run)
            found = true(said)
            assert found or not said["over"], (what, said)
            return found

        try:
            return until(look, what, SECS, 0.1)
        except BaseException as e:
            raise AssertionError(f"{what}: {e}: {self.site.status(run)}") from None

    def running(self, run: dict[str, Any]) -> str:
        """Wait until all of it runs; return its Slurm job."""

        def look(said: dict[str, Any]) -> Any:
            roles = (said.get("roles") or {}).values()
            return (
                said["state"] == "running"
                and all(r["running"] == r["tasks"] for r in roles)
                and said["batch"]["jobId"]
            )

        return str(self.until(run, look, "it runs"))

    def over(self, run: dict[str, Any], state: str, reason: str = "exit") -> dict[str, Any]:
        said = self.site.wait(run, SECS)
        assert (said["state"], said["reason"]) == (state, reason), (said, self.tasks(run))
        return said

    def tasks(self, run: dict[str, Any], attempt: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.site.post(
            "job-tasks", uid=run["uid"], computeJid=jid_of(run), attempt=attempt
        )["tasks"]
        return found

    def output(self, run: dict[str, Any], role: str = "main", index: int = 0, **fields: Any) -> str:
        return self.site.output(run, role=role, index=index, limit=200_000, **fields).body.decode()

    def where(self, run: dict[str, Any]) -> Path:
        """Return its run directory on the cluster."""
        return Path(self.site.status(run)["batch"]["runDir"])

    def refused(self, run: dict[str, Any], code: str) -> str:
        """Check that it is refused and not stored; return the sentence."""
        answer = self.ask("run-simulation", reqId=req_id(), run=run)
        said = answer.json()
        assert said.get("code") == code, (answer.code, said)
        assert (
            self.ask("job-tasks", uid=run["uid"], computeJid=jid_of(run), attempt=0).json()["code"]
            == "notFound"
        )
        check_plain(said["error"])
        return str(said["error"])

    def ask(self, path: str, **body: Any) -> Answer:
        return self.site.ask("POST", f"/api/{path}", json.dumps(body).encode())

    # ---- command line

    def words(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "jobscribe.cli", "--root", str(self.site.root), *args]

    def types(self, *args: str, code: int = 0) -> tuple[str, str]:
        """Run a jobscribe command that must end with this code and show no traceback; return its
        standard output and standard error.
        """
        done = self.site.command(*args, timeout=SECS)
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        check_plain(done.stdout + done.stderr)
        return done.stdout, done.stderr

    def follows(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.words(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    # ---- direct checks

    def marked(self, mark: str) -> list[int]:
        """Return the pids on all nodes with this mark in environment or arguments."""
        needle = mark.encode()
        found = [p.pid for p in processes.table().values() if not p.over and p.pid != os.getpid()]
        return [
            pid
            for pid in found
            if any(
                needle in processes._read(f"/proc/{pid}/{name}") for name in ("environ", "cmdline")
            )
        ]

    def asked(self, job: str) -> dict[str, str]:
        """Return Slurm's record of a job: NumNodes, NumTasks, MinMemoryNode..."""
        return dict(
            word.partition("=")[::2]
            for word in self.slurm.ask("scontrol", "-o", "show", "job", job).split()
            if "=" in word
        )


def role(name: str, command: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["/bin/sh", "-c", command], "memoryMb": 40, **fields}


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }


def check_plain(text: str) -> None:
    assert [t for t in TRACES if t in text] == [], text


@contextlib.contextmanager
def batch_site(
    cluster: tuple[Slurm, Users], *sets: str, **options: Any
) -> Iterator[SlurmSupervisor]:
    """Run a supervisor. options: arguments of `Sites.make`; by default one cluster, where ALICE is
    alice.
    """
    slurm, users = cluster
    slurm.well()
    with sites(slurm, users, lambda: None) as made:  # type: ignore[arg-type,return-value]
        options = {"clusters": {"lab": {}}, "people": {ALICE: "alice"}} | options
        yield SlurmSupervisor(made.make("slots.op_run=40", *sets, **options).start(), slurm, users)
