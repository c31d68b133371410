"""Notices of an execution: facts about its surroundings that neither stop nor fail it. Pure."""

from typing import Annotated

import msgspec

#: Notices of one execution at most.
MOST_NOTICES = 8
#: Codes for the pull of a task's image; their text is the name of the image.
IMAGE_PULLING, IMAGE_PULLED = "imagePulling", "imagePulled"


class Notice(msgspec.Struct, frozen=True):
    """A notice. code: `sshUnavailable` (the image has no sshd), `debuggerMissing` (its package is not
    installed), `debuggerUnreachable`, `holdEnded` (Slurm ended the allocation of a held task before its
    deadline), `imagePulling` or `imagePulled`; readers accept others. text: for people.
    """

    code: Annotated[str, msgspec.Meta(pattern=r"^[a-z][A-Za-z]{0,31}\Z")]
    text: Annotated[str, msgspec.Meta(max_length=300)] = ""


Notices = tuple[Notice, ...]
