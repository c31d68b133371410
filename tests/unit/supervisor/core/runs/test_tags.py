"""Tags of jobs: added and removed by the owner only, bounded, stored once, and kept by later runs."""

import pytest

from jobscribe.db.events import events
from jobscribe.db.events.events import JobFolded, RunPurged, TagsChanged
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.records.job_record import record
from jobscribe.db.store.name_index import secondary_names, tag_name
from jobscribe.protocol.api.requests import MAX_TAGS, JobTag
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface.inputs import ChangeTags


@pytest.fixture
def stage(kit):
    stage = kit.Stage()
    stage.submit(1)
    return stage


def tag(kit, stage, *add, remove=(), n=1, by=None):
    """Change tags; return the effect that answers."""
    request = JobTag(uid=by or kit.UID, compute_jid=kit.jid_of(n), add=add, remove=remove)
    (effect,) = stage.tell(ChangeTags(9, request)).effects
    return effect


def changes(stage):
    return [e for _, e in stage.log if isinstance(e, TagsChanged)]


def test_tags_are_added_and_removed_and_a_repetition_stores_nothing(kit, stage) -> None:
    for _ in range(2):
        assert isinstance(tag(kit, stage, "b", "a"), fx.ReplyStatus)
    assert stage.job().tags == ("a", "b")
    for _ in range(2):
        tag(kit, stage, "c", remove=("a", "never-there"))
    assert stage.job().tags == ("b", "c")
    assert [(e.by, e.added, e.removed) for e in changes(stage)] == [
        (kit.UID, ("a", "b"), ()),
        (kit.UID, ("c",), ("a",)),
    ]


@pytest.mark.parametrize("n, by", [(2, None), (1, "other001")])
def test_an_unknown_job_and_one_of_another_user_are_refused_alike(kit, stage, n, by) -> None:
    said = tag(kit, stage, "a", n=n, by=by)
    assert said.refusal.code == "notFound"
    assert said.refusal.sentence == f"there is no job {kit.jid_of(n)}"
    assert changes(stage) == []


def test_too_many_tags_are_refused_as_a_whole(kit, stage) -> None:
    most = [f"t{n:02}" for n in range(MAX_TAGS)]
    assert isinstance(tag(kit, stage, *most), fx.ReplyStatus)
    said = tag(kit, stage, "one-more")
    assert said.refusal.code == "badRequest" and str(MAX_TAGS) in said.refusal.sentence
    assert "job tag" in said.refusal.more["advice"]
    assert tag(kit, stage, "x", remove=("x",)).refusal.code == "badRequest"
    assert len(stage.job().tags) == MAX_TAGS and len(changes(stage)) == 1
    assert isinstance(tag(kit, stage, "one-more", remove=("t00",)), fx.ReplyStatus)


def test_a_later_run_keeps_the_tags_but_a_job_after_a_purge_has_none(kit, stage) -> None:
    stage.up()
    tag(kit, stage, "a")
    for again in (True, False):
        stage.end(stage.tokens()[0])
        if again:
            stage.submit(1, force=True)
        assert stage.job().tags == ("a",)
    job = stage.job()
    assert job.run is not None
    purged = evolve(job, RunPurged(at=1.0, serial=job.run.serial))
    assert purged.tags == ("a",)
    (requested, *_) = (e for _, e in stage.log)
    assert evolve(purged, requested).tags == ()


def test_only_a_job_with_tags_has_them_in_its_record_checkpoint_and_names(kit, stage) -> None:
    def checkpoint():
        folded = JobFolded(at=1.0, job=stage.job(), events=1, since=1.0, folded_at=1.0)
        return folded, b'"tags"' in events.encode(folded), events.schema_of(folded)

    assert checkpoint()[1:] == (False, events.VERSIONS["JobFolded"] - 1)
    assert "tags" not in record(stage.job(), 1, 1.0)
    tag(kit, stage, "a")
    folded, has_tags, version = checkpoint()
    assert (has_tags, version) == (True, events.VERSIONS["JobFolded"])
    assert record(stage.job(), 1, 1.0)["tags"] == ["a"]
    for event in (folded, *changes(stage)):
        names = secondary_names("job/x", event)
        assert (tag_name("a"), "tag") in {(n.name, n.what) for n in names}
