"""One error tree of plain values: a code that crosses the wire, a sentence for a person, and what
to do next.

A `Refusal` is the normal way to say no. It changes nothing, is counted by its code, and never
carries a stack trace.
"""

from collections.abc import Mapping

import msgspec


class Code(msgspec.Struct, frozen=True):
    """http: status on the HTTP interface. retry: may the very same request succeed later? advice:
    what to do next.
    """

    http: int
    retry: bool
    advice: str


CODES: dict[str, Code] = {
    "badRequest": Code(400, False, "correct the request and send it again"),
    "resourceExceeded": Code(400, False, "ask for less, or have the operator add machines"),
    "volumeRefused": Code(
        400,
        False,
        "name a volume that there is, or a folder of your own; the operator adds volumes to the pool",
    ),
    "unauthenticated": Code(401, False, "send the secret as 'Authorization: Bearer ...'"),
    "notFound": Code(404, False, "check the id; 'jobscribe job list' shows what there is"),
    "methodNotAllowed": Code(405, False, "see the API page for the method of this address"),
    "notHere": Code(
        404, False, "do there what the message says, or choose another task ('jobscribe job tasks')"
    ),
    "planRequired": Code(402, False, "choose a plan that includes this, or ask your administrator"),
    "forbidden": Code(403, False, "ask an administrator"),
    "crossSite": Code(403, False, "send the request from a page of this site, as JSON"),
    "appRefused": Code(422, False, "change what the message names, then try again"),
    "appFailed": Code(
        422, False, "look at the message; the operator finds the trace in the agent's log"
    ),
    "replyTooLarge": Code(413, False, "ask for less, or download it as a file"),
    "notReady": Code(409, True, "wait until the run has started, then send the same request again"),
    "anotherRun": Code(409, False, "wait for the other run, cancel it, or use another simulation"),
    "dependencyNever": Code(
        409, False, "leave the dependency out, or submit what it waits for again"
    ),
    "staleSerial": Code(409, False, "ask for the status again and use the serial it names"),
    "alreadyEnded": Code(409, False, "nothing needs to be done; ask for the status"),
    "conflict": Code(409, True, "send the same request again"),
    "tooLarge": Code(413, False, "send less at once"),
    "rangeNotSatisfiable": Code(416, False, "ask for a part that the file has"),
    "tooDeep": Code(400, False, "flatten the data"),
    "unknownApp": Code(
        404, False, "check the simulation type; the ones installed are named in the message"
    ),
    "unknownOp": Code(400, False, "both ends must run compatible versions"),
    "malformed": Code(400, False, "both ends must run compatible versions"),
    "foreignToken": Code(403, False, "nothing; the message was dropped"),
    "runDirUnwritable": Code(409, False, "make the run directory writable, then submit again"),
    "tooManyRequests": Code(429, True, "slow down and send the same request again"),
    "storageUnavailable": Code(
        503, True, "free the disk or mend the store, then send the same request again"
    ),
    "signInNeeded": Code(
        401,
        False,
        "sign in to the cluster that is named; the run that waits goes on by itself then",
    ),
    "signInRefused": Code(
        401,
        False,
        "check user name, password and code; wait for the next code before you try again",
    ),
    "signedInAlready": Code(409, False, "sign out of the cluster first: jobscribe logout CLUSTER"),
    "signInUnreachable": Code(
        503, True, "try again in a while; the operator runs 'jobscribe driver check sbatch'"
    ),
    "batchRefused": Code(
        400,
        False,
        "ask the cluster for what it has ('jobscribe cluster list' shows it), then submit again",
    ),
    "agentBusy": Code(
        409, False, "wait for its runs or cancel them, then send the same request again"
    ),
    "agentUnavailable": Code(503, True, "look at the agent's log; the request may be sent again"),
    "supervisorUnavailable": Code(503, True, "send the same request again in a moment"),
    "draining": Code(
        503, True, "the supervisor is stopping; send the same request again in a moment"
    ),
    "deadline": Code(504, True, "the same request may be sent again"),
    "internal": Code(500, True, "the operator finds the trace in the supervisor's log"),
    "unsafe": Code(500, False, "change the setting that is named"),
    "rootBusy": Code(500, False, "stop the other supervisor, or use another root"),
    "foreignRoot": Code(
        500, False, "run it as the user who owns the root (sudo -u), or use another root"
    ),
    "logMissing": Code(
        500, False, "put the log back, or accept the loss with 'jobscribe db init --accept-loss'"
    ),
    "copiedRoot": Code(
        500,
        False,
        "start the original, or make the copy a root of its own with 'jobscribe db adopt'",
    ),
    "foreignParts": Code(
        500, False, "put the part back that belongs here, or accept it with 'jobscribe db adopt'"
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
    "badConfig": Code(500, False, "correct the setting that is named"),
    "portTaken": Code(500, False, "choose another port, or 0 for a free one"),
}


class Refusal(Exception):
    """A request or message that is not carried out. `code` is a key of CODES; `sentence` is for a
    person, `more` for programs.
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
        """The form that crosses the wire: state, code, error (the sentence), advice, retry, and
        what there is more.
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
