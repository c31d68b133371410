"""Notices of executions become events, each once, whichever report has them and how often."""

import msgspec

from jobscribe.db.events.events import JobFolded, TaskExited, TaskNoticed, schema_of
from jobscribe.db.records.event_text import sentence
from jobscribe.protocol.jobs.notices import MOST_NOTICES, Notice

NO_SSH, NO_DEBUGGER = Notice("sshUnavailable", "no sshd"), Notice("debuggerMissing", "no debugpy")


def noticed(stage):
    return [e for _, e in stage.log if isinstance(e, TaskNoticed)]


def runs(kit):
    stage = kit.Stage()
    stage.submit(1)
    stage.up()
    return stage, stage.token()


def test_a_notice_is_recorded_while_the_task_runs_and_once(kit):
    stage, token = runs(kit)
    plain = kit.running(token)
    stage.reports(plain)
    folded = JobFolded(at=1.0, job=stage.job(), events=3, since=1.0, folded_at=1.0)
    assert schema_of(folded) == 4
    told = msgspec.structs.replace(plain, notices=(NO_SSH,))
    stage.reports(told, told)
    stage.snapshot(kit.key_of(), told)
    stage.reports(kit.ended(token, 3, notices=(NO_SSH, NO_DEBUGGER)))
    assert [(e.code, e.text) for e in noticed(stage)] == [
        ("sshUnavailable", "no sshd"),
        ("debuggerMissing", "no debugpy"),
    ]
    assert ": no sshd (sshUnavailable); the task goes on" in sentence(noticed(stage)[0])
    (task,) = stage.job().run.attempts[-1].tasks
    assert task.notices == (NO_SSH, NO_DEBUGGER) and task.exit.notices is msgspec.UNSET
    assert stage.job().run.status == "error"
    # a log with notices is not read by the release before
    assert schema_of(msgspec.structs.replace(folded, job=stage.job())) == 5


def test_the_pull_of_an_image_is_recorded_before_the_task_starts(kit):
    stage = kit.Stage()
    stage.submit(1)
    stage.up()
    token = stage.token()
    pulling, pulled = (Notice(code, "team/sim:2") for code in ("imagePulling", "imagePulled"))
    plain = kit.starting(token)
    for notices in ((pulling,), (pulling,), (pulling, pulled)):
        stage.reports(msgspec.structs.replace(plain, notices=notices))
    stage.reports(msgspec.structs.replace(kit.running(token), notices=(pulling, pulled)))
    assert [(e.code, e.text) for e in noticed(stage)] == [
        ("imagePulling", "team/sim:2"),
        ("imagePulled", "team/sim:2"),
    ]
    assert stage.events()[-3:] == ["TaskNoticed", "TaskNoticed", "TaskStarted"]
    assert "the task goes on" not in "".join(map(sentence, noticed(stage)))


def test_notices_of_a_command_that_ended_are_recorded_and_no_flood_of_them(kit):
    stage, token = runs(kit)
    many = tuple(Notice("debuggerUnreachable", str(n)) for n in range(MOST_NOTICES + 4))
    stage.reports(kit.ending(token, 0, notices=many[:2]))
    (exited,) = [e for _, e in stage.log if isinstance(e, TaskExited)]
    assert exited.exit.notices is msgspec.UNSET and len(noticed(stage)) == 2
    stage.reports(kit.ended(token, 0, notices=many))
    assert [e.text for e in noticed(stage)] == [n.text for n in many[:MOST_NOTICES]]
    assert stage.events()[-1] == "RunEnded" and stage.job().run.status == "completed"
