"""The units as text: systemd accepts every line, and their values match the code. Needs no root and
no running systemd.
"""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from jobscribe.cli.services.startup import EXIT_CONFIG
from jobscribe.protocol.errors import CODES

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ROOT / "etc" / "systemd"
PROGRAM = "/opt/jobscribe/current/bin/jobscribe"


def read(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string((UNITS / name).read_text(encoding="utf-8"))
    return parsed


def systemd_version() -> int:
    said = subprocess.run(
        ["systemd-analyze", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\d+", said)
    assert found is not None
    return int(found[0])


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not here: install Debian's systemd (etc/engines/systemd.sh check)",
)
@pytest.mark.parametrize(
    ("unit", "drop_in"),
    [
        ("jobscribe-supervisor.service", False),
        ("jobscribe-supervisor.service", True),
        ("jobscribe-server.service", False),
        ("jobscribe-shard@0.service", False),
        ("jobscribe-router.service", False),
    ],
)
def test_systemd_has_nothing_to_say_against_them(
    unit: str, drop_in: bool, tmp_path: pathlib.Path
) -> None:
    if drop_in and systemd_version() < 254:
        pytest.skip("systemd-254.conf is for systemd 254 and later, and an older one is here")
    for path in UNITS.glob("*.service"):
        (tmp_path / path.name).write_text(
            path.read_text(encoding="utf-8").replace(PROGRAM, sys.executable)
        )
    if (template := re.sub(r"@0", "@", unit)) != unit:
        (tmp_path / template).rename(tmp_path / unit)
    if drop_in:
        (tmp_path / f"{unit}.d").mkdir()
        shutil.copy(UNITS / "systemd-254.conf", tmp_path / f"{unit}.d")
    env = {"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / unit],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
    )
    ours = [
        line for line in done.stderr.splitlines() if "jobscribe" in line or str(tmp_path) in line
    ]
    assert (done.returncode, ours) == (0, [])


def test_what_a_restart_cannot_mend_is_not_restarted() -> None:
    """Errors that a restart can fix have another exit code."""
    for name in ("jobscribe-supervisor.service", "jobscribe-server.service"):
        service = read(name)["Service"]
        assert service["Restart"] == "always"
        assert service["RestartPreventExitStatus"].split() == ["2", str(EXIT_CONFIG)]
        assert read(name)["Unit"]["StartLimitIntervalSec"] == "0"
    assert EXIT_CONFIG == os.EX_CONFIG
    assert all(
        not CODES[code].retry
        for code in ("badConfig", "unsafe", "storeDamaged", "unknownEvent", "networkFileSystem")
    )
    assert CODES["storageUnavailable"].retry


def test_jobs_outlive_the_supervisor() -> None:
    service = read("jobscribe-supervisor.service")["Service"]
    assert (service["KillMode"], service["Delegate"], service["OOMPolicy"], service["Type"]) == (
        "process",
        "yes",
        "continue",
        "notify",
    )
    assert int(service["WatchdogSec"]) > 0
    # systemd removes runtime directories with the main process, but running jobs would still need
    # them
    namespaces = (
        "PrivateTmp",
        "RuntimeDirectory",
        "ProtectSystem",
        "ProtectHome",
        "PrivateDevices",
        "ReadOnlyPaths",
        "TemporaryFileSystem",
        "DynamicUser",
    )
    assert [key for key in namespaces if key in service] == []


def test_nothing_that_belongs_to_the_front_end_brings_the_supervisor_down_or_the_other_way_round() -> (
    None
):
    unit = read("jobscribe-server.service")["Unit"]
    assert unit["Wants"] == "jobscribe-supervisor.service"
    assert not {"Requires", "BindsTo", "PartOf"} & set(unit)
