"""Shells in tasks, for the terminal of a page: open one, type into it. Its output comes from `/live`, so
that an open terminal holds no worker (ADR 47).
"""

import msgspec

from ...protocol.api import requests
from ..request.context import RequestContext
from ..request.page_bodies import SITE_BODIES

#: The app of the runs that a user describes: a shell runs whatever is typed.
_COMMAND = "command"


def shell_open(v: RequestContext) -> bytes:
    """Open a shell. A site that refuses this user runs of commands refuses shells, too."""
    body = v.body(SITE_BODIES[requests.ShellOpen])
    v.authorize(None)
    v.authorize(_COMMAND, "runSimulation")
    request = requests.ShellOpen(**msgspec.structs.asdict(body))
    v.log(request.compute_jid, {"computeJid": request.compute_jid})
    v.act_as_user()
    return v.upstream.post("shell-open", request)


def shell_use(v: RequestContext) -> bytes:
    """Type into a shell. The answer has bytes of the terminal, which stay as they are."""
    body = v.body(SITE_BODIES[requests.ShellUse])
    v.authorize(None)
    v.act_as_user()
    return v.upstream.post("shell-use", requests.ShellUse(**msgspec.structs.asdict(body)))
