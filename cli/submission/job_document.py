"""Reads job files: our own, and configurations of OpenPAI, which are converted. Needs no supervisor."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...protocol.jobs.registry_login import RegistryLogin
from ...schema.fields import InvalidDocument, Problem
from ...schema.jobs.description import Description
from ...schema.openpai.conversion import Converted
from ...schema.openpai.document import Document, parse_document
from ...schema.openpai.draft import LocalPath, Options
from ...schema.openpai.task_script import MAX_CODE
from ...schema.text import reader
from ...schema.text.document import Tree
from .registry_files import openpai_logins, own_logins

#: Files of a code folder that are counted; a folder with more is too large, whatever their sizes.
_MAX_FILES = 200_000


class FileOptions(NamedTuple):
    """Options of the command line for configurations of OpenPAI. user: returns who submits."""

    user: Callable[[], str] = lambda: "user"
    containers: bool = True
    driver: str = ""

    @property
    def for_openpai(self) -> str:
        """Return the given option, which other files do not have."""
        return "--driver" if self.driver else "" if self.containers else "--no-image"


class JobDocument(NamedTuple):
    """A job file without problems. data: its job description, for the supervisor.
    credentials: for its `registryAuth`.
    """

    tree: Tree
    data: object
    description: Description
    openpai: Converted | None = None
    credentials: dict[str, RegistryLogin] = {}

    @property
    def name(self) -> str:
        return self.tree.name

    def located(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return problems of the description with file and line."""
        return Document(self.tree, self.data, self.description, self.openpai).located(problems)


def read_document(
    path: str, options: FileOptions
) -> tuple[JobDocument | None, list[Problem], list[Problem]]:
    """Read a job file; return its document, its problems and its warnings, each with its line."""
    tree = None
    try:
        tree = reader.read(path, lenient=True)
        found = parse_document(
            tree, lambda: Options(options.user(), options.containers, options.driver)
        )
        if (converted := found.openpai) is None:
            logins = own_logins(found.description)
            document = JobDocument(*found, logins.known)
            problems = [*tree.problems, *tree.located(logins.problems)]
            return document, problems, tree.located(found.warnings)
        logins = openpai_logins(converted.draft.logins, "" if path == "-" else path)
        document = JobDocument(*found, logins.known)
        problems, warnings = _check_paths(converted.paths)
        problems += logins.problems
        return (
            document,
            [*tree.problems, *tree.located(problems)],
            tree.located([*found.warnings, *warnings]),
        )
    except InvalidDocument as e:
        if tree is None:
            return None, list(e.problems), []
        return (
            None,
            sorted([*tree.problems, *tree.located(e.problems)], key=lambda p: p.line or 0),
            tree.located(e.warnings),
        )


def _check_paths(paths: Sequence[LocalPath]) -> tuple[list[Problem], list[Problem]]:
    """Check the folders and files of tasks as far as this machine has them, too. Return problems and
    warnings.
    """
    problems, warnings = [], []
    for path, use, value in dict.fromkeys(paths):
        if use == "outputDir":
            if os.path.lexists(value) and not os.access(value, os.W_OK):
                right = "a folder of your own, or one that does not exist yet"
                said = f"you cannot write to {value}"
                problems.append(Problem(path=path, problem=said, right=right))
        elif not os.path.lexists(value):
            where = "a path that the hosts of the tasks have"
            warnings.append(
                Problem(path=path, problem=f"{value} does not exist on this machine", right=where)
            )
        elif not os.access(value, os.R_OK):
            right = "data of your own, or data that you may read"
            problems.append(Problem(path=path, problem=f"you cannot read {value}", right=right))
        elif use == "codeDir" and (size := _size(value)) > MAX_CODE:
            problems.append(
                Problem(
                    path=path,
                    problem=f"{value} has {size / 1e6:,.0f} MB or more",
                    right=f"at most {MAX_CODE // 1_000_000} MB of code; put data into `dataDir`",
                )
            )
        elif use == "secret" and os.stat(value).st_mode & 0o077:
            right = f"chmod 600 {value}"
            problems.append(
                Problem(path=path, problem=f"others can read the secret in {value}", right=right)
            )
    return problems, warnings


def _size(folder: str) -> int:
    """Return the size of a file, or of all files in a folder, counted until it is too large."""
    if not os.path.isdir(folder):
        return os.path.getsize(folder)
    size = count = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(directory, name)).st_size
            except OSError:
                continue
            count += 1
            if size > MAX_CODE:
                return size
            if count > _MAX_FILES:
                return MAX_CODE + 1
    return size
