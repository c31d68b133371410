"""The doctor's checks: how the facts of each are read, how they are judged, and how long that may
take.
"""

from collections.abc import Callable
from typing import NamedTuple

from . import machine_checks as machine
from . import machine_facts, site_facts
from . import site_checks as site
from .findings import Facts, Finding


class Check(NamedTuple):
    """read: from what was given (root, settings, address) to facts. judge: pure. secs: after so
    long it is said to hang.
    """

    read: Callable[[Facts], Facts]
    judge: Callable[[Facts], list[Finding]]
    secs: float = 10.0


CHECKS: dict[str, Check] = {
    "environment": Check(machine_facts.environment, machine.environment),
    "config": Check(site_facts.config, site.config),
    "root": Check(site_facts.root, site.root, 15.0),
    "user root": Check(site_facts.user_root, site.user_root, 15.0),
    "supervisor": Check(site_facts.supervisor, site.supervisor, 15.0),
    "ports": Check(site_facts.ports, site.ports),
    "engines": Check(site_facts.engines, site.engines, 60.0),
    "limits": Check(machine_facts.limits, machine.limits),
    "cgroups": Check(machine_facts.cgroups, machine.cgroups),
    "kernel log": Check(machine_facts.kernel_log, machine.kernel_log),
    "cores": Check(machine_facts.cores, machine.cores),
    "ptrace": Check(machine_facts.ptrace, machine.ptrace),
    "clock": Check(machine_facts.clock, machine.clock),
    "journal": Check(machine_facts.journal, machine.journal),
    "systemd": Check(machine_facts.systemd, machine.systemd, 20.0),
    "gpus": Check(machine_facts.gpus, machine.gpus, 15.0),
}
