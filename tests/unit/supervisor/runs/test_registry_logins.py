"""Users' credentials for registries: found by their user, hidden in logs, dropped at the last end."""

from jobscribe.db.events.events import RunEnded, job_stream
from jobscribe.db.store.contract import Stored
from jobscribe.protocol.jobs.registry_login import LoginRef, RegistryLogin
from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.supervisor.runs.registry_logins import RegistryLogins, login_id

UID, JIDS = "user0001", ["user0001-simulat1-command", "user0001-simulat2-command"]
LOGIN = RegistryLogin(registry="reg:5000", username="ann", password="canaryOfAPassword")


def end(jid: str) -> Stored:
    event = RunEnded(at=1.0, serial=1, status="completed", reason="")  # type: ignore[arg-type]
    return Stored(1, job_stream(jid), 1, event)


def test_credentials_are_dropped_when_their_last_run_has_ended() -> None:
    redactor = Redactor()
    logins, id_ = RegistryLogins(redactor), login_id(UID, "request-1")
    ref = logins.hold(UID, id_, [LOGIN], JIDS)
    assert ref == LoginRef(id=id_, registries=("reg:5000",))
    logins.events([end(JIDS[0])])  # of an earlier run
    logins.submitted(UID, id_, [])
    assert logins.find(UID, ref) == {"reg:5000": LOGIN}
    assert logins.find("user0002", ref) is None
    assert redactor.text("x canaryOfAPassword") == f"x {REDACTED}"
    logins.events([end(JIDS[0])])
    assert logins.find(UID, ref) is not None
    logins.events([end(JIDS[1])])
    assert (logins.find(UID, ref), len(logins)) == (None, 0)
    assert redactor.text("canaryOfAPassword") == "canaryOfAPassword"
    assert "canary" not in repr(LOGIN)


def test_a_refused_job_leaves_no_credentials_and_a_repeated_request_gives_them_back() -> None:
    logins, id_ = RegistryLogins(Redactor()), login_id(UID, "request-1")
    logins.hold(UID, id_, [LOGIN], JIDS)
    logins.submitted(UID, id_, JIDS[:1])
    ref = logins.hold(UID, id_, [LOGIN], JIDS)
    logins.submitted(UID, id_, JIDS)
    assert (logins.find(UID, ref), len(logins)) == (None, 0)
    other = RegistryLogins(Redactor())  # after a restart
    assert other.find(UID, ref) is None
    assert other.hold(UID, id_, [LOGIN], JIDS) == ref
    assert other.find(UID, ref) is not None
