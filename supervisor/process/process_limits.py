"""What the supervisor does to its own process before anything else: memory, threads, descriptors."""

import os
import resource
import sys

from ...runtime import processes

SWITCH_SECS = 0.0002
#: Sockets and files at once, if the machine allows it.
DESCRIPTORS = 65_536


def private_memory() -> None:
    """Jobs of the local driver share the supervisor's unix user: they must not read its memory or
    environment.
    """
    os.umask(0o077)
    processes.set_dumpable(False)


def prompt_threads() -> None:
    """The writer of the log takes turns with the loop: at Python's default of 5 ms a commit would
    wait that long, several times.
    """
    sys.setswitchinterval(SWITCH_SECS)


def many_descriptors() -> int:
    """As many as may be had: agents, clients and streams take one or two each. Returns the limit
    there was; agents and jobs get that.
    """
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if before != resource.RLIM_INFINITY and before < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return before
