"""The table of the doctor's checks: fact reader, judgement and time limit of each."""

from collections.abc import Callable
from typing import NamedTuple

from . import machine_checks, machine_facts, site_checks, site_facts
from .findings import Facts, Finding


class Check(NamedTuple):
    """One check. read: from parameters (root, settings, address) to facts. judge: pure. secs: time
    limit for reading.
    """

    read: Callable[[Facts], Facts]
    judge: Callable[[Facts], list[Finding]]
    secs: float = 10.0


CHECKS: dict[str, Check] = {
    "environment": Check(machine_facts.environment, machine_checks.environment),
    "config": Check(site_facts.config, site_checks.config),
    "root": Check(site_facts.root, site_checks.root, 15.0),
    "user root": Check(site_facts.user_root, site_checks.user_root, 15.0),
    "supervisor": Check(site_facts.supervisor, site_checks.supervisor, 15.0),
    "ports": Check(site_facts.ports, site_checks.ports),
    "engines": Check(site_facts.engines, site_checks.engines, 60.0),
    "limits": Check(machine_facts.limits, machine_checks.limits),
    "cgroups": Check(machine_facts.cgroups, machine_checks.cgroups),
    "kernel log": Check(machine_facts.kernel_log, machine_checks.kernel_log),
    "cores": Check(machine_facts.cores, machine_checks.cores),
    "ptrace": Check(machine_facts.ptrace, machine_checks.ptrace),
    "clock": Check(machine_facts.clock, machine_checks.clock),
    "journal": Check(machine_facts.journal, machine_checks.journal),
    "systemd": Check(machine_facts.systemd, machine_checks.systemd, 20.0),
    "gpus": Check(machine_facts.gpus, machine_checks.gpus, 15.0),
}
