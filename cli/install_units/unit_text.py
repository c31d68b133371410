"""Text of systemd units for one installation, derived from the shipped units. Pure. A checksum
detects later edits.
"""

import hashlib
import re
from typing import NamedTuple

SUPERVISOR, SERVER = "jobscribe-supervisor.service", "jobscribe-server.service"
#: Instead of the supervisor, on a site with shards.
SHARD, ROUTER = "jobscribe-shard@.service", "jobscribe-router.service"
DROP_IN, SYSUSERS = "systemd-254.conf", "jobscribe.sysusers.conf"
#: First systemd version that supports the drop-in.
DROP_IN_FROM = 254
#: Values in the shipped units; an installation may differ.
PROGRAM, CONFIG, ACCOUNT, STATE = (
    "/opt/jobscribe/current/bin/jobscribe",
    "/etc/jobscribe.toml",
    "jobscribe",
    "/var/lib/jobscribe",
)
_MARK = "# Written by 'jobscribe install-units', which will not overwrite it once it has been edited. sha256="
#: Settings that a user's own systemd cannot apply.
_PROCESS_1_ONLY = frozenset(
    (
        "User",
        "StateDirectory",
        "StateDirectoryMode",
        "CapabilityBoundingSet",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ReadWritePaths",
    )
)
_PLAIN = re.compile(r"[A-Za-z0-9_@:,./+=%-]+\Z", re.ASCII)


class Installation(NamedTuple):
    """Parameters of the units. program: the command. account: None for a user's own systemd.
    config: None if the root alone selects the configuration.
    """

    program: tuple[str, ...]
    account: str | None
    config: str | None
    root: str


def unit(shipped: str, i: Installation) -> str:
    """Return a shipped service adapted to this installation."""
    out = []
    for line in shipped.splitlines():
        name, _, value = line.partition("=")
        match name:
            case "ExecStart":
                shard = " --shard %i" if "--shard %i" in value else ""
                line = f"ExecStart={_command(value.split()[1], i)}{shard}"
            case "User" if i.account is not None:
                line = f"User={i.account}"
            case "WantedBy" if i.account is None:
                line = "WantedBy=default.target"
            case "After" if i.account is None:
                line = " ".join(
                    w
                    for w in line.split()
                    if not w.endswith(".target") or w.startswith("After=jobscribe")
                )
                if not any("jobscribe" in w for w in value.split()):
                    continue
                line = "After=jobscribe-supervisor.service"
            case "StateDirectory" if i.root != STATE:
                continue
            case "StateDirectoryMode" if i.root != STATE:
                continue
            case "ProtectSystem" if i.root != STATE and i.account is not None:
                line = f"{line}\nReadWritePaths={_quoted(i.root)}"
            case _:
                pass
        if i.account is None and name in _PROCESS_1_ONLY:
            continue
        out.append(line)
    return "\n".join(out) + "\n"


def account(shipped: str, name: str) -> str:
    """Return the file for systemd-sysusers."""
    return re.sub(r"^u \S+", f"u {name}", shipped, flags=re.MULTILINE)


def marked(text: str) -> str:
    """Add a last line with the checksum that detects edits."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode()).hexdigest()}\n"


def untouched(text: str) -> bool:
    """Return whether this command wrote the text and the text was not edited since."""
    above, mark, rest = text.rpartition(_MARK)
    return bool(mark) and rest.strip() == hashlib.sha256(above.encode()).hexdigest()


def _command(verb: str, i: Installation) -> str:
    words = (
        [*i.program, verb, "--config", i.config]
        if i.config is not None
        else [*i.program, "--root", i.root, verb]
    )
    return " ".join(map(_quoted_word, words))


def _quoted_word(text: str) -> str:
    """Quote a word of a command line, where a dollar sign begins a variable."""
    return _quoted(text).replace("$", "$$")


def _quoted(text: str) -> str:
    """Quote a path for systemd."""
    text = text.replace("%", "%%")
    return (
        text if _PLAIN.match(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )
