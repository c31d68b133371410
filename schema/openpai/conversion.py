"""Recognises configurations of OpenPAI in plain data, and converts them to job descriptions."""

from typing import Any, NamedTuple

from ..fields import Findings, InvalidDocument, Problem
from ..jobs.description import Description, parse_description
from . import version1, version2
from .draft import Draft, LocalPath, Options, merged


class Converted(NamedTuple):
    """data: the job description as plain data, for the supervisor. paths: the folders and files that
    tasks need. Its problems are those of the configuration.
    """

    data: dict[str, Any]
    draft: Draft
    description: Description
    warnings: tuple[Problem, ...]

    @property
    def paths(self) -> list[LocalPath]:
        return self.draft.paths


def version_of(data: object) -> int:
    """Return the version of a configuration of OpenPAI; 0 for other data."""
    if not isinstance(data, dict):
        return 0
    if "protocolVersion" in data or "prerequisites" in data:
        return 2
    roles = data.get("taskRoles")
    if isinstance(roles, dict):
        return 2 if any(map(_is_role_of_2, roles.values())) else 0
    own = data.keys() & {"jobs", "roles", "command"}
    return 1 if isinstance(roles, list) or ("jobName" in data and not own) else 0


def convert_configuration(data: object, options: Options) -> Converted:
    """Return the job description of a configuration. Raises InvalidDocument with all of its problems,
    whose paths are those of the configuration.
    """
    findings = Findings()
    module = version1 if version_of(data) == 1 else version2
    draft = module.draft_of(data, findings, options)
    description = Description(())
    errors: tuple[Problem, ...] = ()
    try:
        description = parse_description(draft.data)
        noted = description.warnings
    except InvalidDocument as e:
        errors, noted = e.problems, e.warnings
    problems, warnings = merged(findings, draft, errors, noted)
    if problems:
        raise InvalidDocument(problems, warnings)
    return Converted(draft.data, draft, description, warnings)


def _is_role_of_2(role: object) -> bool:
    return isinstance(role, dict) and not role.keys().isdisjoint(
        {"resourcePerInstance", "dockerImage"}
    )
