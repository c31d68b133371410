"""Help is fast: it comes from a table, without an import of any command's module."""

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.process

HEAVY = (
    "tornado",
    "rich",
    "pykern",
    "msgspec",
    "http.client",
    "asyncio",
    "psutil",
    "sqlite3",
    "jobscribe.client",
    "jobscribe.supervisor",
)
PROBE = """
import sys
from jobscribe.cli.main import call
code = call(sys.argv[1:])
print("LOADED", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "args", [["--help"], ["job", "--help"], ["db", "--help"], ["config", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *args], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stderr.partition("LOADED")[2].split()
    assert "click" in loaded
    assert [m for m in loaded if m in HEAVY or m.split(".")[0] in HEAVY] == []


def test_how_long_help_takes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def fastest(args: list[str]) -> float:
        def once() -> float:
            begun = time.perf_counter()
            subprocess.run([sys.executable, *args], capture_output=True, check=True, timeout=60)
            return time.perf_counter() - begun

        return min(once() for _ in range(5))

    bare, help_ = fastest(["-c", "pass"]), fastest(["-m", "jobscribe.cli", "--help"])
    with capsys.disabled():
        print(
            f"\n  bare python {bare * 1000:.0f} ms, jobscribe --help {help_ * 1000:.0f} ms, goal: 150 ms above bare"
        )


def test_every_command_in_the_table_exists_and_tells_what_it_does() -> None:
    import click

    from jobscribe.cli.command_table import COMMANDS, SUBCOMMANDS, top

    group = top()
    with click.Context(group) as ctx:
        for name, (module, _, about) in COMMANDS.items():
            command = group.get_command(ctx, name)
            assert isinstance(command, click.Command)
            assert about.endswith(".")
            if not module:
                assert isinstance(command, click.Group)
                for sub in SUBCOMMANDS[name]:
                    found = command.get_command(ctx, sub)
                    assert found is not None
                    assert found.help
                    assert {"--json", "--root", "--url"} <= {
                        o for p in found.params for o in p.opts
                    }


@pytest.mark.parametrize(
    "args",
    [
        ["nosuch"],
        ["job", "nosuch"],
        ["job", "list", "--nosuch"],
        ["job", "status"],
        ["run"],
        ["job", "list", "--limit", "0"],
    ],
)
def test_wrong_usage_exits_with_2(run, args: list[str]) -> None:  # type: ignore[no-untyped-def]
    ended = run(*args)
    assert ended.code == 2
    assert ended.out == ""
    assert "Usage:" in ended.err
