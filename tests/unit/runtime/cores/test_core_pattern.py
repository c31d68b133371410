"""`kernel.core_pattern` as a place to search: each specifier, pipes, sockets, and why there is no
core.
"""

import pytest

from jobscribe.runtime.cores import core_pattern
from jobscribe.runtime.cores.collector import state_without_core, systemd_command


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "name", "has_pid"),
    [
        ("core\n", False, "core", False),
        ("core", True, "core.4711", True),
        ("core.%p", True, "core.4711", True),
        ("core-%e-%p-%t", False, "core-my solver-4711-1795783527", True),
        ("%e.%h.%s.%u.%g.core", False, "solver.node-1.11.1000.1000.core", False),
        ("core.%E.%I.%P", False, "core.!usr!bin!solver.7.4711", False),
        ("100%%.%p.%", False, "100%.4711.", True),
        ("%zcore.%c.%d.%C", False, "core.18446744073709551615.1.3", False),
        ("sub/%u/core.%p", False, "core.1", True),
        ("", True, ".4711", True),
        ("%p%t", False, "47111795783527", True),
    ],
)
def test_names_that_the_kernel_makes_of_a_pattern_are_found(
    pattern: str, uses_pid: bool, name: str, has_pid: bool
) -> None:
    target = core_pattern.parse(pattern, uses_pid)
    assert target.kind == "file" and core_pattern.matches(target, name)
    assert target.has_pid == has_pid


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("core", "core.1"),
        ("core", "score"),
        ("core.%p", "core.x"),
        ("core.%p", "core."),
        ("a.c", "abc"),
        ("core-%h", "core-node-2"),
        ("%e", "a/b"),
    ],
)
def test_other_names_are_not(pattern: str, name: str) -> None:
    assert not core_pattern.matches(core_pattern.parse(pattern, False, "node-1"), name)


@pytest.mark.parametrize("specifier", ["%e", "%u", "%ea", "%u1"])
def test_a_hostile_pattern_takes_no_exponential_time(specifier: str) -> None:
    """A regular expression for it would not end."""
    target = core_pattern.parse(specifier * 100 + "x", False)
    assert not core_pattern.matches(target, "a1" * 120)
    assert not core_pattern.matches(target, "1" * 250)


def test_folders_of_a_pattern_are_matched_one_by_one() -> None:
    target = core_pattern.parse("/var/cores/%u/%e.%p", False)
    assert target.absolute and target.has_pid
    assert [
        e.matches(part) for e, part in zip(target.folder, ("var", "cores", "0"), strict=True)
    ] == [True] * 3
    assert not target.folder[2].matches("x")
    assert not core_pattern.parse("sub/core", False).absolute


@pytest.mark.parametrize(
    ("pattern", "kind", "program", "systemd"),
    [
        (
            "|/usr/lib/systemd/systemd-coredump %P %u %g",
            "pipe",
            "/usr/lib/systemd/systemd-coredump",
            True,
        ),
        ("|/usr/share/apport/apport -p%p -s%s", "pipe", "/usr/share/apport/apport", False),
        ("| ", "pipe", "", False),
        ("@/run/coredump.socket", "socket", "/run/coredump.socket", False),
        ("@@/run/coredump.socket", "socket", "/run/coredump.socket", False),
        ("", "none", "", False),
    ],
)
def test_what_is_no_file(pattern: str, kind: str, program: str, systemd: bool) -> None:
    target = core_pattern.parse(pattern, False)
    assert (target.kind, target.program, target.by_systemd) == (kind, program, systemd)
    assert not core_pattern.matches(target, "core")


@pytest.mark.parametrize(
    ("pattern", "facts", "state"),
    [
        ("core", {"hard_limit": 0}, "hardLimit"),
        ("", {}, "noPattern"),
        ("|/usr/share/apport/apport", {}, "piped"),
        ("@/run/s", {}, "piped"),
        ("|/usr/lib/systemd/systemd-coredump", {}, "notStored"),
        ("core", {"writable": False}, "notWritable"),
        ("/cores/%p", {"writable": False}, "notWritten"),
        ("core", {"free": 0}, "diskFull"),
        ("core", {"free": 1 << 30}, "notWritten"),
        ("core", {"dumped": True}, "notFound"),
        ("core", {"hard_limit": 4096}, "notWritten"),
    ],
)
def test_why_there_is_no_core(pattern: str, facts: dict[str, int | bool], state: str) -> None:
    usual = {"dumped": False, "hard_limit": None, "writable": True, "free": None}
    assert state_without_core(core_pattern.parse(pattern, False), **{**usual, **facts}) == state  # type: ignore[arg-type]


def test_systemd_is_asked_for_one_process_since_its_start() -> None:
    command = systemd_command(4711, 1795783527.9, "/e/cores/.part")
    assert command[0] == "coredumpctl" and command[-2:] == ["dump", "COREDUMP_PID=4711"]
    assert "--since=@1795783527" in command and "--output=/e/cores/.part" in command
