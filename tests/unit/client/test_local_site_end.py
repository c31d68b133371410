"""The end of a private supervisor while another process holds the pipe of its guard."""

import os
import subprocess
from pathlib import Path

import pytest

from jobscribe.client.local_site.site import LocalSite


@pytest.mark.process
def test_the_guard_ends_even_if_a_forked_process_holds_its_pipe(tmp_path: Path) -> None:
    site = object.__new__(LocalSite)
    site.root = str(tmp_path / "root")
    os.mkdir(site.root)
    site._guard = guard = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert guard.stdin is not None
    held = os.dup(guard.stdin.fileno())
    try:
        site.close()
        site.close()
    finally:
        os.close(held)
    assert guard.returncode == -15 and not os.path.exists(site.root)
