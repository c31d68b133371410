"""No, as a browser hears it: the code's HTTP status and a JSON body.

What the supervisor said crosses; what only concerns it and us does not.
"""

from ...client.api.errors import ClientError
from ...protocol.errors import CODES, Refusal

#: Of the front end's users, other things are to be done than of the supervisor's.
ADVICE = {
    "unauthenticated": "sign in, then send the request again",
    "notFound": "check the ids; /own-jobs shows what is yours",
    "methodNotAllowed": "see /openapi.json for the method of this address",
    "alreadyEnded": "nothing needs to be done; ask for the status",
    "unknownApp": "check the simulation type; /apps shows those that there are",
}
#: What the supervisor says to a front end that is wrongly set up: not the browser's business.
_OURS = frozenset({"unauthenticated", "malformed", "unknownOp", "methodNotAllowed"})


def body(refusal: Refusal) -> dict[str, object]:
    return {**refusal.body(), "advice": ADVICE.get(refusal.code, CODES[refusal.code].advice)}


def from_supervisor(error: ClientError) -> Refusal:
    """The refusal for the browser; its cause, where it differs, is for the log."""
    if error.code in CODES and error.code not in _OURS:
        return Refusal(error.code, error.sentence)
    return Refusal(
        "supervisorUnavailable",
        "the supervisor cannot be reached at the moment; what runs, runs on",
    )
