"""Error responses for browsers: the HTTP status of the code, and a JSON body.

Refusals of the supervisor are forwarded, except those about its connection to the front end.
"""

from ...client.api.errors import ClientError
from ...protocol.errors import CODES, Refusal

#: Advice for users of the front end where it differs from the advice for users of the supervisor.
ADVICE = {
    "unauthenticated": "sign in, then send the request again",
    "notFound": "check the ids; /own-jobs shows what is yours",
    "methodNotAllowed": "see /openapi.json for the method of this address",
    "alreadyEnded": "nothing needs to be done; ask for the status",
    "unknownApp": "check the simulation type; /apps lists the available ones",
}
#: Codes of a misconfigured front end, which do not concern the browser.
_OURS = frozenset({"unauthenticated", "malformed", "unknownOp", "methodNotAllowed"})


def body(refusal: Refusal) -> dict[str, object]:
    """Return the JSON body. The time to wait is in the header Retry-After."""
    shown = {k: v for k, v in refusal.body().items() if k != "retryAfterSecs"}
    return {**shown, "advice": ADVICE.get(refusal.code, CODES[refusal.code].advice)}


def from_supervisor(error: ClientError) -> Refusal:
    """Return the refusal for the browser. The log has the original one if it differs."""
    if error.code in CODES and error.code not in _OURS:
        more = {k: v for k, v in error.more.items() if k == "retryAfterSecs"}
        return Refusal(error.code, error.sentence, more)
    return Refusal(
        "supervisorUnavailable",
        "the supervisor is unreachable at the moment; active runs continue",
    )
