"""A job file as its text describes it: our own, or a configuration of OpenPAI, which is converted.
Pure. Files that it names, such as those with credentials, are read elsewhere.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..fields import Problem
from ..jobs.description import Description, parse_description
from ..text.document import Tree
from .conversion import Converted, convert_configuration, version_of
from .draft import Options

#: Part of the supervisor's sentence about a role with an image where there are no containers.
_NO_CONTAINERS = "runs tasks without containers"


class Document(NamedTuple):
    """A job file without problems in its jobs. data: the job description, for the supervisor."""

    tree: Tree
    data: object
    description: Description
    openpai: Converted | None = None

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return self.description.warnings if self.openpai is None else self.openpai.warnings

    def located(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return problems of the description with file and line."""
        if self.openpai is not None:
            problems = [_advised(self.openpai.draft.translated(p)) for p in problems]
        return self.tree.located(problems)


def parse_document(tree: Tree, options: Callable[[], Options]) -> Document:
    """Return the document of a text. options: called for a configuration of OpenPAI.

    Raises InvalidDocument with all problems of the jobs, still without lines (`Tree.located`).
    """
    if not version_of(tree.data):
        return Document(tree, tree.data, parse_description(tree.data))
    converted = convert_configuration(tree.data, options())
    return Document(tree, converted.data, converted.description, converted)


def _advised(problem: Problem) -> Problem:
    if _NO_CONTAINERS not in problem.problem:
        return problem
    return replace(
        problem, right="`--driver docker`, or `--no-image` to run its commands without the image"
    )
