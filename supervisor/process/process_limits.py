"""Settings of the supervisor's own process, made before anything else: memory protection, threads,
descriptors.
"""

import os
import resource
import sys

from ...runtime import processes

SWITCH_SECS = 0.0002
#: Maximum open sockets and files, if the machine allows it.
DESCRIPTORS = 65_536


def private_memory() -> None:
    """Protect memory and environment from jobs: those of the local driver run as the supervisor's
    unix user.
    """
    os.umask(0o077)
    processes.set_dumpable(False)


def prompt_threads() -> None:
    """Shorten the switch interval of threads. The log's writer alternates with the event loop; with
    Python's default of 5 ms each commit would wait several times that long.
    """
    sys.setswitchinterval(SWITCH_SECS)


def many_descriptors() -> int:
    """Raise the limit of open descriptors: agents, clients and streams need one or two each. Return
    the previous limit, which agents and jobs get.
    """
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if before != resource.RLIM_INFINITY and before < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return before
