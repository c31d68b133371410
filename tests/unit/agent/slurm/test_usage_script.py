"""The sampler of batch scripts, in a real shell, and the parser of its file."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobscribe.agent.slurm import usage_script
from jobscribe.agent.slurm.usage_script import USAGE_LOG, Usage, parse

from ..conftest import until

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


#: Stands for srun on the first node: starts the program of the step, as on another node.
SRUN = """#!/bin/sh
case $* in --version) echo "slurm $SLURM"; exit ;; esac
echo "$*" >>"$FOLDER/calls"
while [ "$1" != /bin/sh ]; do shift; done
SLURM_PROCID=0 exec "$@"
"""
NVIDIA_SMI = """#!/bin/sh
echo "$*" >>"$FOLDER/asked"
printf '40, 1000\\n[N/A], 5\\n61, 24\\n'
"""


@pytest.mark.process
@pytest.mark.parametrize(("version", "nodes"), [("22.05.8", 2), ("20.11.9", 2), ("22.05.8", 65)])
def test_a_step_samples_the_other_nodes_until_the_script_ends(
    tmp_path: Path, version: str, nodes: int
) -> None:
    """No step starts with an old Slurm, where it would hold memory of the job, or on very many nodes."""
    for name, program in (("srun", SRUN), ("nvidia-smi", NVIDIA_SMI)):
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    first, other = (tmp_path / f"usage.{n}.{nodes}.log" for n in (0, 1))
    is_sampled = version == "22.05.8" and nodes == 2
    wanted = (first, other) if is_sampled else (first,)
    text = "\n".join(
        (
            *usage_script.FUNCTION,
            *usage_script.start(f"'{tmp_path}'", steps=True),
            *(f"while [ ! -s '{log}' ]; do sleep 0.1; done" for log in wanted),
            "exit 3",
        )
    )
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "FOLDER": str(tmp_path),
        "SLURM": version,
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "CUDA_VISIBLE_DEVICES": "0,3,1",
    }
    done = subprocess.run(["/bin/sh", "-c", text], env=env, timeout=60, check=False)
    assert done.returncode == 3
    usage = parse(first.read_bytes())[0]
    assert (usage.gpus, usage.gpu_percents, usage.gpu_memory) == (2, 101.0, 1024 * 2**20)
    assert "--id=0,3,1 " in (tmp_path / "asked").read_text()
    assert other.exists() == (tmp_path / "calls").exists() == is_sampled
    if is_sampled:
        assert "--overlap --relative=1 --nodes=1 --ntasks=1 " in (tmp_path / "calls").read_text()
        assert usage.processes <= 2, "srun and the step are no part of the job"
    # the step ends after srun
    until(lambda: subprocess.run(["pgrep", "-f", str(tmp_path)], check=False).returncode == 1)


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
    gpus = b"1795829440 12.50 1048576 0 4096 3 2 150 4\n"
    assert parse(cut + good + gpus + b"".join(bad)) == [
        Usage(95829420.0, 1.0, 5, 5, 5, 1),
        Usage(1795829430.0, 12.5, 1048576, 0, 4096, 3),
        Usage(1795829440.0, 12.5, 1048576, 0, 4096, 3, 2, 150.0, 4 * 2**20),
    ]
