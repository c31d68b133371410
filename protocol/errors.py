"""Error codes that cross the wire, and `Refusal`, the exception that carries one. Plain values;
nothing here logs or sends.

A `Refusal` rejects a request or message. It changes no state, is counted by its code, and has no
stack trace.
"""

from collections.abc import Mapping

import msgspec


class Code(msgspec.Struct, frozen=True):
    """Properties of an error code.

    http: status on the HTTP interface. retry: whether the same request may succeed later. advice:
    what the user can do next.
    """

    http: int
    retry: bool
    advice: str


CODES: dict[str, Code] = {
    "badRequest": Code(400, False, "correct the request and send it again"),
    "resourceExceeded": Code(400, False, "request less, or ask the operator to add machines"),
    "queueRefused": Code(
        400, False, "choose a queue that the message names, or ask the operator for this one"
    ),
    "volumeRefused": Code(
        400,
        False,
        "name an existing volume or a folder of your own; the operator adds volumes to the pool",
    ),
    "unauthenticated": Code(
        401,
        False,
        "send the secret or an API token as 'Authorization: Bearer ...'; 'jobscribe auth login' stores a token",
    ),
    "tokenExpired": Code(
        401, False, "create another API token, then give it to 'jobscribe auth login'"
    ),
    "tokenRevoked": Code(
        401, False, "create another API token, then give it to 'jobscribe auth login'"
    ),
    "scopeMissing": Code(
        403,
        False,
        "use an API token with the scope that the message names ('jobscribe auth token')",
    ),
    "tokenLimit": Code(
        409,
        False,
        "revoke a token that is not needed: 'jobscribe auth token list', 'auth token revoke ID'",
    ),
    "notFound": Code(404, False, "check the id; 'jobscribe job list' shows your jobs"),
    "methodNotAllowed": Code(405, False, "see the API page for the methods of this address"),
    "notHere": Code(
        404, False, "follow the message, or choose another task ('jobscribe job tasks')"
    ),
    "planRequired": Code(402, False, "choose a plan that includes this, or ask your administrator"),
    "forbidden": Code(403, False, "ask an administrator"),
    "crossSite": Code(403, False, "send the request from a page of this site, as JSON"),
    "appRefused": Code(422, False, "change the input that the message names, then try again"),
    "appFailed": Code(
        422, False, "read the message; the operator finds the stack trace in the agent's log"
    ),
    "replyTooLarge": Code(413, False, "request less, or download it as a file"),
    "notReady": Code(409, True, "wait until the run has started, then send the same request again"),
    "anotherRun": Code(409, False, "wait for the other run, cancel it, or use another simulation"),
    "nameTaken": Code(
        409, False, "choose another name; 'jobscribe job list' shows the names of your jobs"
    ),
    "dependencyNever": Code(
        409, False, "remove the dependency, or submit the run that it names again"
    ),
    "staleSerial": Code(409, False, "request the status and use the serial that it names"),
    "alreadyEnded": Code(409, False, "no action is needed; request the status"),
    "conflict": Code(409, True, "send the same request again"),
    "tooLarge": Code(413, False, "send less data at once"),
    "rangeNotSatisfiable": Code(416, False, "request a range within the file"),
    "tooDeep": Code(400, False, "flatten the data"),
    "wrongShard": Code(
        421, False, "send the request to a router of the site, which knows the shard of each user"
    ),
    "notSharded": Code(
        501, False, "follow the message; sites without shards can do this (docs/scale.md)"
    ),
    "unknownApp": Code(
        404, False, "check the simulation type; the message names the installed ones"
    ),
    "unknownOp": Code(400, False, "run compatible versions of jobscribe on both ends"),
    "malformed": Code(400, False, "run compatible versions of jobscribe on both ends"),
    "agentOutdated": Code(
        409,
        False,
        "repeat it when the runs of this agent have ended: the next agent has this version",
    ),
    "protocolVersion": Code(
        426, False, "run versions of jobscribe on both ends that are at most one release apart"
    ),
    "foreignToken": Code(403, False, "no action is needed; the message was dropped"),
    "runDirUnwritable": Code(409, False, "make the run directory writable, then submit again"),
    "tooManyRequests": Code(429, True, "slow down and send the same request again"),
    "debuggerTaken": Code(409, False, "wait until the other session is over, or ask its user"),
    "tooManyRuns": Code(
        429, True, "wait until some of your runs have ended, then send the same request again"
    ),
    "hoursUsedUp": Code(
        403,
        False,
        "wait for the next month, or ask the operator for more hours; 'jobscribe usage --by month' shows what was used",
    ),
    "quotaExceeded": Code(
        403,
        False,
        "remove files that you do not need, then send the same request again; 'jobscribe usage --disk' shows the largest ones",
    ),
    "storageUnavailable": Code(
        503, True, "free disk space or repair the store, then send the same request again"
    ),
    "signInNeeded": Code(
        401,
        False,
        "sign in to the named cluster; the waiting run then continues by itself",
    ),
    "signInRefused": Code(
        401,
        False,
        "check user name, password and code; wait for the next code, then try again",
    ),
    "signInDenied": Code(
        403, False, "sign in with an account that this site accepts, or ask the operator"
    ),
    "signInExpired": Code(400, False, "start the sign-in again"),
    "signInInvalid": Code(
        502, False, "start the sign-in again; the operator finds the reason in the front end's log"
    ),
    "signInUnavailable": Code(
        503, True, "try again in a moment; the operator finds the reason in the front end's log"
    ),
    "deviceCodeUnknown": Code(400, False, "run 'jobscribe auth login' again for a new code"),
    "deviceDenied": Code(403, False, "run 'jobscribe auth login' again if this was a mistake"),
    "signedInAlready": Code(409, False, "sign out of the cluster first: jobscribe logout CLUSTER"),
    "signInUnreachable": Code(
        503, True, "try again later; the operator runs 'jobscribe driver check sbatch'"
    ),
    "batchRefused": Code(
        400,
        False,
        "request what the cluster has ('jobscribe cluster list' shows it), then submit again",
    ),
    "agentBusy": Code(
        409, False, "wait for the agent's runs or cancel them, then send the same request again"
    ),
    "agentUnavailable": Code(503, True, "read the agent's log; the same request may be sent again"),
    "noSupervisor": Code(
        503, True, "send the same request again in a moment, or to another address"
    ),
    "supervisorUnavailable": Code(503, True, "send the same request again in a moment"),
    "draining": Code(
        503, True, "the supervisor is stopping; send the same request again in a moment"
    ),
    "deadline": Code(504, True, "the same request may be sent again"),
    "internal": Code(500, True, "the operator finds the stack trace in the supervisor's log"),
    "unsafe": Code(500, False, "change the named setting"),
    "rootBusy": Code(500, False, "stop the other supervisor, or use another root"),
    "foreignRoot": Code(
        500, False, "run the command as the owner of the root (sudo -u), or use another root"
    ),
    "logMissing": Code(
        500, False, "restore the log, or accept the loss with 'jobscribe db init --accept-loss'"
    ),
    "copiedRoot": Code(
        500,
        False,
        "start the original, or make the copy an independent root with 'jobscribe db adopt'",
    ),
    "foreignParts": Code(
        500, False, "restore the original part, or accept this one with 'jobscribe db adopt'"
    ),
    "networkFileSystem": Code(
        500,
        False,
        "put the root on a local disk (only the users' tree may lie on a network file system)",
    ),
    "storeDamaged": Code(
        500, False, "run 'jobscribe db check'; restore a backup, or run 'jobscribe db repair'"
    ),
    "unknownEvent": Code(
        500, False, "start the version of jobscribe that wrote the store, or a newer one"
    ),
    "badConfig": Code(500, False, "correct the named setting"),
    "portTaken": Code(500, False, "choose another port, or 0 for a free one"),
}


class Refusal(Exception):
    """A rejected request or message. `code` is a key of CODES, `sentence` is for people, and `more`
    has additional fields for programs.
    """

    def __init__(self, code: str, sentence: str, more: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.more = dict(more or {})

    @property
    def http(self) -> int:
        return CODES[self.code].http

    def body(self) -> dict[str, object]:
        """Return the JSON body of the error: state, code, error (the sentence), advice, retry, and
        the fields of `more`.
        """
        c = CODES[self.code]
        return {
            "state": "error",
            "code": self.code,
            "error": self.sentence,
            "advice": c.advice,
            "retry": c.retry,
            **self.more,
        }
