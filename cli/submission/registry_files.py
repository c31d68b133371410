"""Reads the credentials for image registries that a job file names. They go into the request, and
nowhere else.
"""

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ...protocol.jobs.registry_login import RegistryLogin
from ...schema.fields import Problem, member
from ...schema.jobs.auth_file import FORM, MAX_BYTES, login, parse_auth_file, parse_secret_file
from ...schema.jobs.description import Description
from ...schema.openpai.draft import LoginSource


class Logins(NamedTuple):
    """known: credentials by their name in `registryAuth`. problems: of the description, or of the
    configuration of OpenPAI.
    """

    known: dict[str, RegistryLogin]
    problems: list[Problem]


def own_logins(description: Description) -> Logins:
    """Read the files in `registryAuth` of our own job files."""
    out = Logins({}, [])
    for job in description.jobs:
        for file in job.logins:
            _add(out, member(job.path, "registryAuth"), file, file, None)
    return out


def openpai_logins(sources: list[LoginSource], file: str) -> Logins:
    """Read the credentials of a configuration of OpenPAI. file: the configuration; "" if it is none."""
    out = Logins({}, [])
    for source in sources:
        if not source.password:
            _add(out, source.path, source.name, source.file, source)
            continue
        if file and os.stat(file).st_mode & 0o077:
            said = f"others can read the password in {file}"
            out.problems.append(Problem(path=source.path, problem=said, right=f"chmod 600 {file}"))
        _keep(out, source, source.password)
    return out


def _add(out: Logins, path: str, name: str, file: str, source: LoginSource | None) -> None:
    content = b""
    for said, right in _problems(file):
        out.problems.append(Problem(path=path, problem=said, right=right))
        return
    with open(file, "rb") as f:
        content = f.read(MAX_BYTES)
    if source is not None and source.username:
        _keep(out, source, parse_secret_file(content) or "")
    elif (found := parse_auth_file(content)) is not None:
        out.known[name] = found
    else:
        said = f"{file} has no credentials of the right form"
        out.problems.append(Problem(path=path, problem=said, right=FORM))


def _keep(out: Logins, source: LoginSource, password: str) -> None:
    found = login(source.registry, source.username, password)
    if found is None:
        said = "registry, user name or password is empty, too long or has a wrong form"
        right = "registryuri: host or host:port; username and password of that registry"
        out.problems.append(Problem(path=source.path, problem=said, right=right))
    else:
        out.known[source.name] = found


def _problems(file: str) -> Iterator[tuple[str, str]]:
    right = "a file of yours on this machine, chmod 600, with " + FORM
    try:
        status = os.stat(file)
    except OSError as e:
        yield f"{file} cannot be read: {e.strerror}", right
        return
    if not stat.S_ISREG(status.st_mode):
        yield f"{file} is no regular file", right
    elif status.st_mode & 0o077:
        yield f"others can read the password in {file}", f"chmod 600 {file}"
    elif not os.access(file, os.R_OK):
        yield f"you cannot read {file}", right
