"""The sampler of batch scripts, in a real shell, and the parser of its file."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobscribe.agent.slurm import usage_script
from jobscribe.agent.slurm.usage_script import USAGE_LOG, Usage, parse

#: Uses memory, processor time in a child that ends, and a name that looks like another field.
PROGRAM = r"""
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(15, b"a) R 1 (b", 0, 0, 0)
held = b"x" * 80_000_000
burn = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
subprocess.run([sys.executable, "-c", burn])
open(sys.argv[1], "w").close()
time.sleep(30)
"""


@pytest.mark.process
def test_the_processes_of_a_script_are_sampled_until_it_ends(tmp_path: Path) -> None:
    log = tmp_path / USAGE_LOG
    # the command is sampled when its child has ended, and ends then
    text = "\n".join(
        (
            *usage_script.FUNCTION,
            f'"{sys.executable}" -c "$1" "{tmp_path}/burnt" & p=$!',
            f"while [ ! -e '{tmp_path}/burnt' ]; do sleep 0.1; done",
            *usage_script.start(f"'{tmp_path}'", steps=False),
            f"while [ ! -s '{log}' ]; do sleep 0.1; done; kill $p; wait $p",
            "exit 3",
        )
    )
    done = subprocess.run(["/bin/sh", "-c", text, "sh", PROGRAM], timeout=60, check=False)
    assert done.returncode == 3
    (usage,) = parse(log.read_bytes())
    assert 80e6 < usage.memory < 400e6
    assert 0.4 <= usage.cpu_secs < 3
    # the program, and the sleep of the loop
    assert usage.processes in (1, 2)
    marks = subprocess.run(
        ["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert marks.stdout == "", "the sampler ends with the script"


@pytest.mark.process
def test_a_job_on_several_nodes_is_not_sampled(tmp_path: Path) -> None:
    text = "\n".join((*usage_script.start("x", steps=True), 'echo "[$u]"'))
    for env, said in (
        ({"SLURM_JOB_NUM_NODES": "2"}, "[]\n"),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1"}, None),
    ):
        out = subprocess.run(
            ["/bin/sh", "-c", "usage() { :; }\n" + text],
            env={"PATH": "/usr/bin:/bin", **env},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert out == said if said else out != "[]\n"


def test_lines_that_are_no_samples_are_ignored() -> None:
    good = b"1795829430 12.50 1048576 0 4096 3\n"
    cut = b"95829420 1.00 5 5 5 1\n"
    bad = (
        b"x\n",
        b"1 2 3\n",
        b"-1 1.00 1 1 1 1\n",
        b"1 1.00 1 1 1 1" * 9,
        b"\xff\0\n",
        b"1 1.00 1 1 1",
    )
    assert parse(cut + good + b"".join(bad)) == [
        Usage(95829420.0, 1.0, 5, 5, 5, 1),
        Usage(1795829430.0, 12.5, 1048576, 0, 4096, 3),
    ]
