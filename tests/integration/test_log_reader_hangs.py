"""A reader of the log that hangs, such as journald that waits for its disk or a stopped terminal
(Ctrl-S). The supervisor does not wait for it.
"""

import fcntl
import os
import subprocess
from collections.abc import Iterator

import pytest
from consistency_check import check_books
from supervisor_process import PYTHON_PATH, SupervisorProcess, shell, spec, until

PAGE = 4096


@pytest.fixture
def unread() -> Iterator[SupervisorProcess]:
    """Return a site whose standard error is an unread pipe with capacity for a few lines."""
    site = SupervisorProcess()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PAGE)
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }
    try:
        site.process = subprocess.Popen(
            site.arguments(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=writer,
            env=env,
            cwd="/",
        )
        assert site.process.stdout is not None
        assert site.process.stdout.readline().startswith(b"jobscribe ready at ")
        site.read_address()
        yield site
        # the full pipe does not delay the end of the supervisor
        assert site.stop() == 0
    finally:
        site.end()
        os.close(reader)
        os.close(writer)


@pytest.mark.timeout(90)
def test_jobs_run_are_canceled_and_told_about_while_nobody_reads_the_log(
    unread: SupervisorProcess,
) -> None:
    stays = shell("trap '' TERM; sleep 1000 & wait; wait", graceSecs=0.2)
    unread.submit(stays)
    unread.running(stays)
    runs = [spec(["true"]) for _ in range(40)]
    for run in runs:
        unread.submit(run)
    for run in runs:
        assert unread.wait(run)["state"] == "completed"
    unread.cancel(stays)
    assert unread.wait(stays)["state"] == "canceled"
    check_books(unread)
    # the log file contains the lines that did not fit into the pipe
    until(lambda: len(unread.logged()) > 2 * PAGE, "the log file is written all the same")
