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


def protect_memory() -> None:
    """Protect memory and environment from jobs, because jobs of the local driver run as the
    supervisor's unix user.
    """
    os.umask(0o077)
    processes.set_dumpable(False)


def shorten_switch_interval() -> None:
    """Shorten the switch interval of threads. The log's writer alternates with the event loop; with
    Python's default of 5 ms each commit would wait several times that long.
    """
    sys.setswitchinterval(SWITCH_SECS)


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors: agents, clients and streams need one or two each. Return
    the previous limit, for agents and jobs.
    """
    before, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = (
        DESCRIPTORS if hard_limit == resource.RLIM_INFINITY else min(hard_limit, DESCRIPTORS)
    )
    if before != resource.RLIM_INFINITY and before < new_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
    return before
