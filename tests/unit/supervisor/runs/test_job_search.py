"""Search of jobs for pages: words, filters, orders and pages."""

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from in_memory_supervisor import OTHER, UID, InMemorySupervisor

from jobscribe.db.sql import row_filter
from jobscribe.db.store.contract import RowFilter
from jobscribe.protocol.api.requests import JobSearch, RunSimulation, RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.access.principal import OPERATOR, Principal
from jobscribe.supervisor.api.endpoints import runs as endpoints
from jobscribe.supervisor.runs.search import job_search
from jobscribe.supervisor.runs.search.job_search import search_jobs
from jobscribe.supervisor.runs.search.search_slots import MAX_OF_USER, SearchSlots

COMMANDS = (
    ("train", ("python", "train.py", "--rate", "0.1")),
    ("100 % sure", ("sh", "-c", 'echo "it\'s a_b"')),
    ("Überlauf", ("python", "eval.py")),
    (None, ("sleep", "5")),
)


async def filled() -> InMemorySupervisor:
    """Return a supervisor with these jobs, and one job of another user."""
    in_memory = InMemorySupervisor()
    for n, (name, command) in enumerate(COMMANDS):
        spec = RunSpec(uid=UID, simulation_id=f"sim0000{n}", command=command, sim_name=name)
        await in_memory.desk.submit(RunSimulation(req_id=f"request{n:08}", run=spec))
    spec = RunSpec(uid=OTHER, simulation_id="sim00009", command=("python",))
    await in_memory.desk.submit(RunSimulation(req_id="request00000009", run=spec))
    return in_memory


async def found(in_memory: InMemorySupervisor, **fields: Any) -> list[int]:
    request = msgspec.convert({"uid": UID, **fields}, JobSearch)
    page = await search_jobs(in_memory.desk, request, 2e9)
    assert page["searchedUntil"] is None
    return [int(job["jid"].split("-")[1].removeprefix("sim")) for job in page["jobs"]]


async def test_words_match_name_command_and_id_of_own_jobs() -> None:
    in_memory = await filled()
    assert await found(in_memory) == [3, 2, 1, 0]
    assert await found(in_memory, text="PYTHON") == [2, 0]
    assert await found(in_memory, text="rate  python") == [0]
    assert await found(in_memory, text="überlauf") == [2]
    assert await found(in_memory, text="SIM00003") == [3]
    assert await found(in_memory, text="python sleep") == []
    assert await found(in_memory, text=f"{UID}-sim00003-command") == [3]
    assert await found(in_memory, text=f"{UID}-sim00003-command", states=["error"]) == []
    assert await found(in_memory, text=f"{OTHER}-sim00009-command") == []
    assert await found(in_memory, uid=None, text="python") == [9, 2, 0]
    assert await found(in_memory, states=["running"]) == []
    assert await found(in_memory, queues=["none"]) == []


def noted_scans(
    in_memory: InMemorySupervisor, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[RowFilter, int]]:
    """Return a list that gets the filter and size of each window."""
    noted: list[tuple[RowFilter, int]] = []
    scan = in_memory.store.scan_jobs

    def scan_jobs(wanted: RowFilter, *, before: int | None, window: int) -> Any:
        noted.append((wanted, window))
        return scan(wanted, before=before, window=window)

    monkeypatch.setattr(in_memory.store, "scan_jobs", scan_jobs)
    return noted


@pytest.mark.parametrize("text", ["'echo \"it's", "it's", '"a_b"', "a_b", "sh -c 'echo"])
async def test_a_command_is_found_by_its_text_with_and_without_quotes(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    in_memory = await filled()
    scans = noted_scans(in_memory, monkeypatch)
    assert await found(in_memory, text=text) == [1]
    # SQLite looks for the words in the stored request, which has no quotes of a shell
    stored = msgspec.json.encode(COMMANDS[1][1]).decode()
    words = scans[0][0].words
    assert words and all(json.dumps(word)[1:-1] in stored for word in words)


async def test_windows_become_smaller_while_they_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLOW_SECS", -1.0), ("WINDOW", 4), ("LEAST_WINDOW", 2)):
        monkeypatch.setattr(job_search, name, value)
    in_memory = await filled()
    scans = noted_scans(in_memory, monkeypatch)
    assert await found(in_memory, uid=None, sort="submitted") == [9, 3, 2, 1, 0]
    assert [window for _, window in scans] == [4, 2]


def test_the_size_of_a_window_has_limits_and_comes_back() -> None:
    sizes = [1000]
    for secs in (0.1,) * 8 + (0.02,) + (0.001,) * 8:
        sizes.append(job_search._next_window(sizes[-1], 1000, secs))
    assert sizes[:9] == [1000, 500, 250, 125, 62, 31, 15, 10, 10]
    assert sizes[9:] == [10, 20, 40, 80, 160, 320, 640, 1000, 1000]
    assert job_search._next_window(4, 4, 0.1) == 4


@pytest.mark.parametrize("window", [2, 1000])
async def test_each_order_is_complete_page_by_page(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(job_search, "WINDOW", window)
    in_memory = await filled()
    for sort in ("changed", "submitted", "started", "ended", "duration"):
        for ascending in (False, True):
            fields: dict[str, Any] = {"uid": UID, "sort": sort, "ascending": ascending, "limit": 1}
            pages, cursor = [], ""
            while cursor is not None:
                request = msgspec.convert({**fields, "cursor": cursor}, JobSearch)
                page = await search_jobs(in_memory.desk, request, 2e9)
                pages += [job["jid"] for job in page["jobs"]]
                cursor = page["next"]
            assert len(pages) == len(set(pages)) == len(COMMANDS)
            whole = await found(in_memory, sort=sort, ascending=ascending)
            assert [int(jid.split("-")[1].removeprefix("sim")) for jid in pages] == whole


async def test_a_search_that_takes_too_long_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_search, "SEARCH_SECS", 0.0)
    monkeypatch.setattr(job_search, "DEEP_WINDOW", 2)
    in_memory = await filled()
    page = await search_jobs(in_memory.desk, JobSearch(uid=UID, text="train"), 2e9)
    assert page["jobs"] == [] and page["searchedUntil"] is not None
    more = JobSearch(uid=UID, text="train", cursor=page["next"])
    page = await search_jobs(in_memory.desk, more, 2e9)
    assert [job["name"] for job in page["jobs"]] == ["train"]


@pytest.mark.parametrize(
    "fields",
    [
        {"cursor": "x"},
        {"cursor": "1:2"},
        {"cursor": "9" * 19},
        {"cursor": "x", "sort": "ended"},
        {"cursor": "nan:x", "sort": "ended"},
    ],
)
async def test_an_invalid_cursor_is_refused(fields: dict[str, Any]) -> None:
    in_memory = await filled()
    with pytest.raises(Refusal, match="cursor must be"):
        await search_jobs(in_memory.desk, JobSearch(uid=UID, **fields), 2e9)


def test_words_are_looked_up_as_they_are_stored() -> None:
    where, values = row_filter.conditions(RowFilter(words=('50%_!"',)))
    assert len(where) == 1 and values == ['%50!%!_!!"%', '%50!%!_!!\\"%']


def numbers(page: dict[str, Any]) -> list[int]:
    return [int(job["jid"].split("-")[1].removeprefix("sim")) for job in page["jobs"]]


async def test_a_search_without_a_user_finds_jobs_of_whom_the_sender_may_see() -> None:
    in_memory = await filled()

    async def seen(sender: Principal, **fields: Any) -> list[int]:
        handler: Any = SimpleNamespace(
            parsed=lambda type_: JobSearch(**fields), principal=sender, runs=in_memory.desk
        )
        return numbers(await endpoints.job_search(handler))

    chief = Principal(uid="chief001", role="groupAdmin", members=frozenset({UID}))
    assert await seen(chief) == [3, 2, 1, 0]
    assert await seen(chief, text=f"{OTHER}-sim00009-command") == []
    assert await seen(chief, sort="submitted", text="python") == [2, 0]
    assert await seen(Principal(uid=OTHER, role="groupAdmin", members=frozenset({UID}))) == [
        9, 3, 2, 1, 0,
    ]  # fmt: skip
    assert await seen(Principal(uid="admin001", role="admin")) == [9, 3, 2, 1, 0]
    assert await seen(OPERATOR) == [9, 3, 2, 1, 0]
    # whoever names a user was checked before
    assert await seen(chief, uid=UID, text="python") == [2, 0]


def test_one_user_has_some_searches_at_once_and_others_have_theirs() -> None:
    slots = SearchSlots()
    with contextlib.ExitStack() as running:
        for _ in range(MAX_OF_USER):
            running.enter_context(slots.hold(UID))
        with pytest.raises(Refusal, match=f"searches of {UID}") as e, slots.hold(UID):
            raise AssertionError("a search too many")
        assert (e.value.http, e.value.more) == (429, {"retryAfterSecs": 1})
        with slots.hold(OTHER):
            assert slots.sizes() == {"searches": MAX_OF_USER + 1}
    assert slots.sizes() == {"searches": 0} and not slots._open


async def test_the_route_counts_searches_by_the_user_who_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, in_memory = asyncio.Event(), InMemorySupervisor()

    async def slow(*of: Any) -> dict[str, Any]:
        await go.wait()
        return {}

    monkeypatch.setattr(endpoints, "search_jobs", slow)

    def ask(principal: Principal, uid: str | None) -> "asyncio.Future[Any]":
        handler: Any = SimpleNamespace(
            runs=in_memory.desk, principal=principal, parsed=lambda type_: JobSearch(uid=uid)
        )
        return asyncio.ensure_future(endpoints.job_search(handler))

    admin = Principal(uid="admin001", role="admin")
    running = [ask(OPERATOR, UID) for _ in range(MAX_OF_USER)]
    running += [ask(admin, uid) for uid in (UID, OTHER, None, UID)]
    running.append(ask(OPERATOR, OTHER))
    await asyncio.sleep(0)
    for more in (ask(OPERATOR, UID), ask(admin, "another1")):
        with pytest.raises(Refusal) as e:
            await more
        assert e.value.code == "tooManyRequests"
    go.set()
    await asyncio.gather(*running)
    assert in_memory.desk.searches.sizes() == {"searches": 0}
