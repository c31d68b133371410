"""Real Snakemake with the executor plug-in of etc/snakemake, and a real supervisor.

The jobs write down their own starts. `etc/engines/snakemake.sh install` installs Snakemake.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snakemake_workflow import END_SECS, Workflow, program
from supervisor_process import SupervisorProcess, until

from jobscribe.client import Client

#: `long` waits for the file go, so that a test can end the workflow meanwhile.
KILLED = """
rule all:
    input: "last"
rule long:
    output: "long"
    resources: mem_mb=200, runtime=5
    shell: "echo long >> starts; echo part > {output}; while [ ! -e go ]; do sleep 0.1; done; echo whole > {output}"
rule last:
    input: "long"
    output: "last"
    shell: "echo last >> starts; echo 'the disk of Elba is full' >&2; exit 3"
"""
SIX = """
envvars: "PASSPHRASE"
rule all:
    input: "sum", "other"
rule make:
    output: "{s}.txt"
    shell: "echo make >> starts; echo {wildcards.s} > {output}"
rule upper:
    input: "{s}.txt"
    output: "{s}.up"
    group: "g"
    shell: "echo upper >> starts; tr a-z A-Z < {input} > {output}"
rule length:
    input: "{s}.up"
    output: "{s}.len"
    group: "g"
    resources: jobscribe_queue="default"
    shell: "echo length >> starts; wc -c < {input} > {output}"
rule sum:
    input: "a.len", "b.len"
    output: "sum"
    shell: "echo sum >> starts; cat {input} > {output}"
rule other:
    output: "other"
    shell: "echo other >> starts; kill -SEGV $$"
"""


@pytest.fixture
def workflow(site: SupervisorProcess, tmp_path: Path) -> Iterator[Workflow]:
    found = Workflow(program(), site, tmp_path)
    yield found
    found.end()


def test_a_killed_workflow_finds_its_run_again_and_reports_a_failure(
    workflow: Workflow, site: SupervisorProcess
) -> None:
    """Nothing runs twice; the message of a failed job is that of `job why`."""
    first = workflow.start(KILLED)
    until(lambda: (workflow.folder / "long").exists(), "the job writes", END_SECS)
    until(lambda: "is the run " in workflow.text(), "Snakemake knows the run", END_SECS)
    first.kill()
    first.wait()

    second = workflow.start(KILLED, "--rerun-incomplete", "--nolock")
    until(lambda: "is the run " in workflow.text(), "the run is found", END_SECS)
    with Client.from_root(site.root) as client:
        (row,) = client.jobs(active=True).jobs
        assert row["jid"] in workflow.text()
        (workflow.folder / "go").touch()
        assert second.wait(END_SECS) == 1, workflow.text()
        assert workflow.starts() == ["last", "long"]
        assert (workflow.folder / "long").read_text() == "whole\n"
        failed = next(run for run in client.jobs().jobs if "_last_" in run["jid"])
        why = client.why(failed["jid"])
    text = workflow.text()
    assert "Error in rule last" in text
    assert f"job {failed['jid']} error" in text
    assert str(why["sentence"]) in text
    assert "stderr.log (check log file(s)" in text
    assert list((workflow.folder / ".snakemake/jobscribe").iterdir()) == []


@pytest.mark.soak("tests/unit/plugins/test_snakemake_runs.py and the test above")
def test_six_rules_with_groups_and_a_failure(workflow: Workflow, site: SupervisorProcess) -> None:
    """A secret of the environment reaches the jobs, and no event."""
    secret = "correcthorse7battery"
    ended = workflow.start(SIX, "--keep-going", PASSPHRASE=secret)
    assert ended.wait(END_SECS) == 1, workflow.text()
    assert workflow.starts() == sorted(
        ["make", "make", "upper", "upper", "length", "length", "sum", "other"]
    ), workflow.text()
    assert (workflow.folder / "sum").read_text().split() == ["2", "2"]
    assert "Error in rule other" in workflow.text()
    assert "SIGSEGV" in workflow.text()
    with Client.from_root(site.root) as client:
        rows = client.jobs().jobs
        assert len(rows) == 6  # a group job is one run
        stories = [str(client.story(row["jid"])) for row in rows]
    assert not any(secret in story for story in stories)

    again = workflow.start(SIX.replace("kill -SEGV $$", "touch other"), PASSPHRASE=secret)
    assert again.wait(END_SECS) == 0, workflow.text()
    assert workflow.starts().count("make") == 2


@pytest.mark.soak("tests/unit/plugins/test_snakemake_runs.py")
def test_a_canceled_workflow_leaves_no_process(workflow: Workflow, site: SupervisorProcess) -> None:
    process = workflow.start(KILLED)
    until(lambda: (workflow.folder / "long").exists(), "the job writes", END_SECS)
    until(lambda: "is the run " in workflow.text(), "Snakemake knows the run", END_SECS)
    process.send_signal(signal.SIGINT)
    assert process.wait(END_SECS) != 0
    with Client.from_root(site.root) as client:
        (row,) = client.jobs().jobs
        state = client.status(row["jid"])
    assert (state.state, state.over) == ("canceled", True)


@pytest.mark.soak("tests/unit/plugins/test_snakemake_runs.py")
def test_a_workflow_survives_a_restart_of_the_supervisor(
    workflow: Workflow, make_site: Callable[..., SupervisorProcess], site: SupervisorProcess
) -> None:
    process = workflow.start(KILLED.replace("exit 3", "touch last"))
    until(lambda: (workflow.folder / "long").exists(), "the job writes", END_SECS)
    site.stop(signal.SIGKILL)
    site.start()
    (workflow.folder / "go").touch()
    assert process.wait(END_SECS) == 0, workflow.text()
    assert workflow.starts() == ["last", "long"]
