"""A token starts at most one process: duplicates, late starts and failed starts all get the right
answer.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jobscribe.runtime.execution import keeper_ledger
from jobscribe.supervisor.files.evidence_files import remove_evidence

from ..conftest import Keeper, until

pytestmark = pytest.mark.process
#: The users of its keepers, also without SOAK=1: what they may do differs.
USERS = ("same user", "ordinary user")


def _stamps(keeper: Keeper) -> int:
    """Return how often the command ran, from the stamps that it wrote."""
    path = keeper.place / "stamps"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(autouse=True)
def _writable_place(place: Path) -> None:
    (place / "stamps").touch()
    (place / "stamps").chmod(0o666)


def _stamp(keeper: Keeper) -> str:
    return f"echo $$ >>{keeper.place}/stamps; "


def test_the_same_start_twice_starts_once_and_is_answered_twice(keeper: Keeper) -> None:
    token = keeper.token()
    order = keeper.order(token, _stamp(keeper) + "sleep NAP; exit 4")
    for _ in range(3):
        keeper.send(**order)
    pids = {keeper.next("started", token)["pid"] for _ in range(3)}
    assert len(pids) == 1
    keeper.wake()
    assert keeper.end_of(token).code == 4
    keeper.send(**order)
    assert keeper.end_of(token).code == 4
    assert _stamps(keeper) == 1


def test_a_late_start_of_a_forgotten_execution_is_answered_from_its_evidence(
    keeper: Keeper,
) -> None:
    token = keeper.token()
    order = keeper.order(token, _stamp(keeper) + "exit 4")
    keeper.send(**order)
    first = keeper.end_of(token)
    keeper.send(do="forget", names=[token.name])
    until(lambda: not keeper_ledger.load(str(keeper.folder)).entries)
    keeper.send(**order)
    assert keeper.end_of(token) == first
    assert _stamps(keeper) == 1


def test_a_token_stays_used_when_only_the_name_of_its_evidence_is_left(keeper: Keeper) -> None:
    token = keeper.token()
    order = keeper.order(token, _stamp(keeper) + "exit 4")
    keeper.send(**order)
    keeper.end_of(token)
    keeper.send(do="forget", names=[token.name])
    until(lambda: not keeper_ledger.load(str(keeper.folder)).entries)
    runs = os.open(keeper.folder / "run", os.O_RDONLY | os.O_DIRECTORY)
    assert remove_evidence(runs, token.name, lambda: True)
    os.close(runs)
    keeper.send(**order)
    end = keeper.end_of(token)
    assert (end.source, end.code) == ("start", None) and "before" in str(end.detail)
    assert _stamps(keeper) == 1


def test_a_start_after_its_stop_never_starts(keeper: Keeper) -> None:
    token = keeper.token()
    keeper.stop(token, reason="cancel")
    refused = keeper.end_of(token)
    assert (refused.source, refused.detail, refused.stop_reason) == (
        "start",
        "stopped before it started",
        "cancel",
    )
    keeper.send(**keeper.order(token, _stamp(keeper)))
    assert keeper.end_of(token) == refused
    keeper.send(do="forget", names=[token.name])
    keeper.send(**keeper.order(token, _stamp(keeper)))
    assert keeper.end_of(token).source == "start"
    assert _stamps(keeper) == 0


def test_a_start_after_its_stop_never_starts_under_the_next_keeper_either(
    new_keeper: Callable[..., Keeper],
) -> None:
    keeper = new_keeper()
    token = keeper.token()
    keeper.stop(token)
    refused = keeper.end_of(token)
    keeper.kill()
    following = new_keeper()
    following.send(**following.order(token, _stamp(following)))
    assert following.end_of(token) == refused
    assert _stamps(following) == 0


def test_a_stop_of_what_has_ended_is_answered_with_its_end(keeper: Keeper) -> None:
    token = keeper.launch("exit 4")
    end = keeper.end_of(token)
    keeper.stop(token)
    assert keeper.end_of(token) == end and end.stop_reason is None


def test_a_run_directory_that_cannot_be_made_fails_the_start_for_good(keeper: Keeper) -> None:
    (keeper.place / "file").touch()
    token = keeper.token()
    order = keeper.order(token, _stamp(keeper), run_dir=keeper.place / "file" / "below")
    keeper.send(**order)
    failed = keeper.end_of(token)
    assert (
        failed.source == "start"
        and failed.detail is not None
        and str(keeper.place / "file") in failed.detail
    )
    (keeper.place / "file").unlink()
    keeper.send(**order)
    assert keeper.end_of(token) == failed
    assert _stamps(keeper) == 0


def test_a_run_directory_that_cannot_be_written_fails_the_start(keeper: Keeper, who: int) -> None:
    if who < 0 and os.getuid() == 0:
        pytest.skip("root may write everywhere; the half that runs as an ordinary user tries this")
    locked = keeper.place / "locked"
    locked.mkdir(mode=0o555)
    os.chown(locked, 0 if os.getuid() == 0 else -1, -1)
    token = keeper.token()
    keeper.send(**keeper.order(token, _stamp(keeper), run_dir=locked))
    failed = keeper.end_of(token)
    assert (failed.source, failed.detail) == (
        "start",
        f"the run directory is not writable: {locked}",
    )


def test_a_run_directory_without_a_link_is_no_reason_not_to_start(keeper: Keeper) -> None:
    token = keeper.token()
    keeper.run_dir(token).mkdir()
    keeper.run_dir(token).chmod(0o777)
    (keeper.run_dir(token) / ".jobscribe").touch()
    keeper.send(**keeper.order(token, "exit 4"))
    assert keeper.end_of(token).code == 4
    assert "cannot link" in keeper.log()


def test_a_run_that_succeeds_at_once_leaves_neither_script_nor_link_and_others_do(
    keeper: Keeper,
) -> None:
    silent, brief, failed, longer = (
        keeper.launch(text) for text in ("exit 0", "echo out", "exit 3", "sleep NAP; echo out")
    )
    assert keeper.end_of(silent).ok and keeper.end_of(brief).ok
    assert keeper.end_of(failed).code == 3
    until(lambda: (keeper.run_dir(longer) / ".jobscribe").exists())
    keeper.wake()
    assert keeper.end_of(longer).ok
    assert os.listdir(keeper.evidence(silent)) == []
    assert os.listdir(keeper.evidence(brief)) == ["stdout.log"]
    assert os.listdir(keeper.run_dir(brief)) == []
    for token in (failed, longer):
        assert (
            keeper.run_dir(token) / ".jobscribe/latest/script.sh"
        ).stat().st_mode & 0o777 == 0o700
    again = msgspec.structs.replace(brief, serial=brief.serial + 1000)
    keeper.send(**keeper.order(again, "exit 0", run_dir=keeper.run_dir(failed)))
    assert keeper.end_of(again).ok
    assert (keeper.run_dir(failed) / ".jobscribe").resolve() == keeper.evidence(again).resolve(), (
        "a link to an earlier run would mislead"
    )


def test_the_links_of_a_run_directory_follow_the_latest_attempt(keeper: Keeper) -> None:
    links = keeper.place / "shared" / ".jobscribe"
    one = keeper.token()
    tokens = [one, *(msgspec.structs.replace(one, attempt=n) for n in (2, 3))]
    for n, token in enumerate(tokens, 1):
        keeper.send(**keeper.order(token, f"exit {3 - n}", run_dir=keeper.place / "shared"))
        assert keeper.end_of(token).code == 3 - n
        assert (links / "latest").resolve() == keeper.evidence(token).resolve()
        assert sorted(p.name for p in links.glob("attempt-*")) == [
            f"attempt-{each}" for each in range(1, n + 1) if n > 1
        ]
    assert [(links / f"attempt-{n}").resolve() for n in (1, 2, 3)] == [
        keeper.evidence(token).resolve() for token in tokens
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"runDir": "relative"},
        {"runDir": None},
        {"script": None},
        {"limit": "soon"},
        {"grace": [1]},
        {"runDir": "/tmp/a\0b"},
        {"script": "\ud800"},
        {"runDir": "/tmp/\ud800"},
        {"token": "a\0b"},
    ],
)
def test_a_start_order_that_is_not_one_fails_with_a_sentence(
    keeper: Keeper, change: dict[str, object]
) -> None:
    token = keeper.token()
    keeper.send(**{**keeper.order(token, _stamp(keeper)), **change})
    said = keeper.next("ended")
    assert said["exit"]["source"] == "start" and said["exit"]["detail"]
    assert keeper.run("exit 3").code == 3
    assert _stamps(keeper) == 0


def test_evidence_that_cannot_be_written_fails_the_start_and_is_not_tried_again(
    keeper: Keeper, who: int
) -> None:
    token = keeper.token()
    runs = keeper.folder / "run"
    runs.rename(keeper.folder / "elsewhere")
    order = keeper.order(token, _stamp(keeper))
    keeper.send(**order)
    failed = keeper.end_of(token)
    assert failed.source == "start" and failed.detail is not None and "evidence" in failed.detail
    (keeper.folder / "elsewhere").rename(runs)
    keeper.send(do="forget", names=[token.name])
    keeper.send(**order)
    assert keeper.end_of(token).source == "start"
    assert _stamps(keeper) == 0


def test_the_keeper_that_is_about_to_end_starts_nothing(keeper: Keeper) -> None:
    stays = keeper.started("trap 'sleep 0.5; exit 0' TERM; echo ready; sleep NAP & wait")
    until(lambda: "ready" in keeper.text(stays))
    keeper.send(do="quit", stopJobs=True, grace=20)
    late = keeper.run(_stamp(keeper))
    assert (late.source, late.detail) == ("start", "the keeper is about to end")
    assert keeper.end_of(stays).stop_reason == "shutdown"
    assert _stamps(keeper) == 0


def test_a_thousand_names_in_the_ledger_are_taken_over_and_forgotten(
    new_keeper: Callable[..., Keeper],
) -> None:
    """The new keeper reports executions that ended under an earlier keeper once, and reads no
    forgotten evidence.
    """
    keeper = new_keeper()
    keeper.kill()
    names, tokens = [], {}
    for n in range(1000):
        token = keeper.token(serial=5000 + n)
        tokens[token.name] = str(token)
        keeper.evidence(token).mkdir()
        (keeper.evidence(token) / "exit.json").write_text(
            json.dumps({"source": "keeper", "code": n % 7})
        )
        names.append(token.name)
    with (keeper.folder / "ledger.jsonl").open("a") as f:
        f.writelines(
            json.dumps({"use": name, "token": tokens[name], "ticks": 0}) + "\n" for name in names
        )
    following = new_keeper()
    told = {e["name"]: e for e in following.hello["executions"]}
    assert sorted(told) == sorted(names)
    assert all(e["exit"]["code"] == int(e["token"].split("/")[1]) % 1000 % 7 for e in told.values())
    following.send(do="forget", names=names)
    until(lambda: not keeper_ledger.load(str(following.folder)).entries)


def test_the_description_of_the_job_lies_in_the_run_directory_and_never_goes_through_what_a_job_left_there(
    keeper: Keeper,
) -> None:
    where, precious = keeper.place / "shared", keeper.place / "precious"
    precious.write_text("mine")
    precious.chmod(0o666)
    for left in ("nothing", "link", "dangling link", "file", "fifo", "hard link"):
        token = keeper.token()
        leave = {
            "nothing": "true",
            "link": f"ln -sf {precious} job.json",
            "dangling link": f"ln -sf {keeper.place}/made job.json",
            "file": "rm -f job.json; echo much more than this > job.json",
            "fifo": "rm -f job.json; mkfifo job.json",
            "hard link": f"rm -f job.json; ln {precious} job.json 2>/dev/null || true",
        }[left]
        order = keeper.order(token, f"cat job.json; {leave}", run_dir=where)
        keeper.send(**order, job=f"before {left}")
        assert keeper.end_of(token).code == 0
        assert keeper.text(token) == f"before {left}"
    last = keeper.token()
    keeper.send(**keeper.order(last, "cat job.json", run_dir=where), job="at last")
    assert keeper.end_of(last).code == 0 and keeper.text(last) == "at last"
    assert precious.read_text() == "mine" and not (keeper.place / "made").exists()
    assert (where / "job.json").stat().st_mode & 0o777 == 0o600


def test_a_job_without_a_description_finds_none_and_what_is_no_text_is_refused(
    keeper: Keeper,
) -> None:
    token = keeper.token()
    keeper.send(**keeper.order(token, "cat job.json 2>/dev/null || echo none"))
    assert keeper.end_of(token).code == 0 and keeper.text(token) == "none\n"
    keeper.send(**keeper.order(keeper.token(), "true"), job=["no text"])
    said = keeper.next("ended")["exit"]
    assert said["source"] == "start" and "job is of a wrong type" in said["detail"]


def test_a_job_that_left_a_directory_in_its_place_fails_with_a_sentence(keeper: Keeper) -> None:
    where = keeper.place / "shared"
    token = keeper.token()
    keeper.send(**keeper.order(token, "mkdir job.json", run_dir=where))
    assert keeper.end_of(token).code == 0
    token = keeper.token()
    keeper.send(**keeper.order(token, _stamp(keeper), run_dir=where), job="x")
    failed = keeper.end_of(token)
    assert failed.source == "start" and failed.detail is not None and "job.json" in failed.detail
    assert _stamps(keeper) == 0
