"""Admission of run requests: the truth table, serials, repeated requests."""

import itertools

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.messages import RunStatusUpdate
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface.inputs import AgentMessage
from jobscribe.supervisor.core.runs.admission import with_hash


def played(kit, state: str):
    """Return a stage whose job 1 is in this state, with the hash of spec(1)."""
    stage = kit.Stage()
    if state == "none":
        return stage
    stage.submit()
    if state == "queued":
        return stage
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    if state == "completed":
        stage.reports(kit.ended(token))
    if state == "failed":
        stage.reports(kit.ended(token, 3))
    if state in ("canceled", "stopping"):
        stage.cancel()
    if state == "canceled":
        stage.reports(kit.ended(token, None, signal=15, stop_reason="cancel"))
    return stage


STATES = ("none", "queued", "running", "completed", "failed", "stopping", "canceled")


@pytest.mark.parametrize(
    ("state", "same_hash", "serial", "force"),
    list(
        itertools.product(
            STATES,
            (True, False),
            ("absent", "equal", "other"),
            (False, True),
        )
    ),
)
def test_truth_table(kit, state, same_hash, serial, force):
    stage = played(kit, state)
    old = stage.job().run.serial if state != "none" else 0
    given = {"absent": 0, "equal": old, "other": old + 77}[serial]
    valid = same_hash and given in (0, old)
    before = len(stage.log)
    stage.submit(command=("true",) if same_hash else ("false",), serial=given, force=force)
    active = state in ("queued", "running")
    if active and (not valid or force):
        assert stage.refusal() == "anotherRun"
        assert len(stage.log) == before
        assert not stage.asked(fx.ReplyStatus)
    elif active or (state == "completed" and valid and not force):
        (reply,) = stage.asked(fx.ReplyStatus)
        assert reply.serial == old == stage.job().run.serial
        assert len(stage.log) == before
    else:
        (reply,) = stage.asked(fx.ReplyStatus)
        assert reply.serial == stage.job().run.serial > old
        assert stage.state() == ("pending", None)
        assert len(stage.job().history) == (0 if state == "none" else 1)


def test_the_two_refusals_of_a_live_run_say_different_things(kit):
    stage = played(kit, "running")
    stage.submit(command=("other",))
    (other,) = stage.asked(fx.ReplyRefusal)
    stage.submit(force=True)
    (forced,) = stage.asked(fx.ReplyRefusal)
    assert "another browser" in other.refusal.sentence
    assert "running already" in forced.refusal.sentence


def test_after_the_log_was_set_back_no_serial_is_below_those_that_were_used(kit):
    floor = int(kit.WALL) + 5000
    stage = kit.Stage(serial_floor=floor)
    serials = []
    for _ in range(3):
        stage.submit(force=True)
        serials.append(stage.job().run.serial)
        stage.up() if len(serials) == 1 else None
        stage.reports(kit.running(stage.token()))
        stage.reports(kit.ended(stage.token()))
    assert serials == [floor, floor + 1, floor + 2]


def test_serial_is_unix_time_and_grows_even_when_the_clock_stands_or_goes_back(kit):
    stage = kit.Stage()
    serials = []
    for jump in (0.9, 0.0, 0.0, 5.0, -3600.0, 0.0):
        stage.wall += jump
        stage.submit()
        serials.append(stage.job().run.serial)
        stage.cancel()
    assert serials[0] == int(kit.WALL)
    assert serials == sorted(set(serials))
    assert serials[1:3] == [serials[0] + 1, serials[0] + 2]
    assert serials[3] == int(kit.WALL + 5.9)
    assert serials[4:] == [serials[3] + 1, serials[3] + 2]


def test_one_request_is_one_transaction_with_its_receipt(stage, kit):
    decision = stage.submit(req_id="request-one")
    assert [w.stream for w in decision.writes] == [f"job/{kit.jid_of()}", f"agent/{kit.key_of()}"]
    (receipt,) = decision.receipts
    assert (receipt.uid, receipt.req_id, receipt.jid, receipt.serial) == (
        kit.UID,
        "request-one",
        kit.jid_of(),
        stage.job().run.serial,
    )
    event = stage.log[0][1]
    assert event.req_id == "request-one"
    assert event.run_dir == "/users/sim00001"
    assert event.spec.compute_job_hash is not None


def test_many_requests_together_are_one_transaction_with_right_versions(stage, kit):
    """The second request of job 1 joins the first; job 2 is another stream; the refused request
    changes nothing.
    """
    decision = stage.tell(
        stage.submission(kit.spec(1)),
        stage.submission(kit.spec(2)),
        stage.submission(kit.spec(1)),
        stage.submission(kit.spec(2, command=("else",))),
    )
    assert {
        w.stream: (w.expected_version, len(w.events))
        for w in decision.writes
        if w.stream.startswith("job/")
    } == {
        f"job/{kit.jid_of(1)}": (0, 1),
        f"job/{kit.jid_of(2)}": (0, 1),
    }
    assert len(decision.receipts) == 3
    assert len(stage.asked(fx.ReplyStatus)) == 3
    assert stage.refusal() == "anotherRun"
    assert len(stage.asked(fx.StartAgent)) == 1


def test_expected_versions_are_those_before_the_decision(stage, kit):
    """A run ends and its successor starts in one decision: one write, at the version of the log."""
    stage.submit()
    stage.up()
    token, version = stage.token(), stage.job().version
    over = AgentMessage(kit.key_of(), 1, RunStatusUpdate(execution=kit.ended(token)))
    decision = stage.tell(over, stage.submission(kit.spec(1), force=True))
    (write,) = [w for w in decision.writes if w.stream.startswith("job/")]
    assert write.expected_version == version
    assert [type(e).__name__ for e in write.events] == [
        "TaskStarted",
        "TaskEnded",
        "AttemptEnded",
        "RunEnded",
        "RunRequested",
        "TaskPlaced",
    ]


def test_the_same_req_id_again_is_answered_by_the_same_run(stage):
    stage.submit(req_id="request-one")
    serial = stage.job().run.serial
    stage.cancel()
    stage.submit()
    before = len(stage.log)
    decision = stage.submit(req_id="request-one", force=True, command=("whatever",))
    (reply,) = stage.asked(fx.ReplyStatus)
    assert reply.serial == serial != stage.job().run.serial
    assert (len(stage.log), decision.receipts) == (before, ())


def test_a_req_id_of_another_job_is_refused(stage):
    stage.submit(1, req_id="request-one")
    before = len(stage.log)
    stage.submit(2, req_id="request-one")
    assert stage.refusal() == "conflict"
    assert len(stage.log) == before


def test_one_user_does_not_see_the_req_ids_of_another(stage, kit):
    stage.submit(1, req_id="request-one")
    stage.submit(1, uid=kit.OTHER_UID, req_id="request-one")
    assert stage.job(1, kit.OTHER_UID).run.status == "pending"


def test_joining_and_reusing_keep_a_receipt(kit):
    for state in ("running", "completed"):
        stage = played(kit, state)
        decision = stage.submit(req_id="the-second")
        (receipt,) = decision.receipts
        assert receipt.serial == stage.job().run.serial
        assert decision.writes == ()


def test_a_jid_that_is_none_is_refused(stage, kit):
    stage.tell(stage.submission(kit.spec(1, compute_model="9bad")))
    assert stage.refusal() == "badRequest"
    assert stage.log == []


def test_hash_given_is_kept_and_hash_made_depends_on_what_matters(kit):
    one = with_hash(kit.spec(env={"A": "1", "B": "2"}))
    assert with_hash(one) is one
    assert with_hash(kit.spec(env={"B": "2", "A": "1"})).compute_job_hash == one.compute_job_hash
    same = with_hash(
        kit.spec(
            env={"A": "1", "B": "2"}, time_limit_secs=5, sim_name="x", grace_secs=1, core_bytes=4
        )
    )
    assert same.compute_job_hash == one.compute_job_hash
    others = [
        kit.spec(env={"A": "1"}),
        kit.spec(env={"A": "1", "B": "2"}, wrap=("nice",)),
        kit.spec(command=("true", "x")),
        kit.spec(env={"A": "1", "B": "2"}, simulation_type="myapp"),
        kit.spec(env={"A": "1", "B": "2"}, compute_model="heat"),
        kit.spec(env={"A": "1", "B": "2"}, profile="cpu"),
    ]
    hashes = {with_hash(s).compute_job_hash for s in others} | {one.compute_job_hash}
    assert len(hashes) == len(others) + 1


def test_a_refusal_is_a_refusal_not_a_crash(stage):
    stage.submit()
    stage.submit(command=("other",))
    (reply,) = stage.asked(fx.ReplyRefusal)
    assert isinstance(reply.refusal, Refusal)
    assert reply.refusal.http == 409


@pytest.mark.parametrize("state", STATES)
def test_a_name_is_taken_by_any_earlier_run(kit, state):
    """`onlyNew` is refused for a live and for a finished run, whatever its hash; a repeated request
    is answered as the first time.
    """
    stage = played(kit, state)
    before = len(stage.log)
    stage.submit(only_new=True, req_id="request-0001", sim_name="x")
    if state != "none":
        assert (stage.refusal(), len(stage.log)) == ("nameTaken", before)
        return
    assert stage.state() == ("pending", None)
    stage.submit(only_new=True, req_id="request-0001", sim_name="x")
    assert stage.asked(fx.ReplyStatus)
    stage.submit(only_new=True, req_id="request-0002", sim_name="x")
    assert stage.refusal() == "nameTaken"
