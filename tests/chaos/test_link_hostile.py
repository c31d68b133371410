"""A hostile link between supervisor and agents, with a seed: the outcome equals that of a good
link, and every request ends in time.
"""

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from harmful_proxy import NONE, Harm
from supervisor_process import SupervisorProcess, until
from timestamped_jobs import ROOM, SOAK, Asker, Stamps, diverted, jid_of, sites

SEEDS, OPS = (1000, 200) if SOAK else (4, 60)
#: Seeds per site, so that with SOAK=1 several processes share the seeds.
SLICE = 50 if SOAK else SEEDS
USERS = ("LinkUsr1", "LinkUsr2")
THREADS = 4
#: Deadline of requests that wait only for the disk.
SOON_SECS = 1.0
#: Extra time on top of a log reader's wait (supervisor.outputs) and of a call's deadline
#: (supervisor.calls).
LOG_SLACK_SECS, CALL_SLACK_SECS = 10.0, 2.0
CALL_CODES = {"agentUnavailable", "deadline"}


def harm_of(chance: random.Random) -> Harm:
    """Return the mixture of harms for one seed."""
    return Harm(
        late=chance.choice((0.05, 0.3)),
        repeat=chance.choice((0.05, 0.3)),
        swap=chance.choice((0.03, 0.1)),
        slow=chance.choice((0.02, 0.05)),
        lost=chance.choice((0.02, 0.05)),
        cut=chance.choice((0.02, 0.05)),
        late_secs=chance.choice((0.02, 0.3)),
        slow_rate=chance.choice((2_000.0, 50_000.0)),
    )


MakeSite = Callable[..., SupervisorProcess]


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    with sites() as make:
        yield make


class Life:
    """The client requests of one seed and their expected outcome, which is known beforehand."""

    def __init__(self, site: SupervisorProcess, stamps: Stamps, seed: int) -> None:
        self.site, self.stamps, self.seed = site, stamps, seed
        #: by name: the run, and the expected (state, exit code)
        self.runs: dict[str, tuple[dict[str, Any], tuple[str, int | None]]] = {}
        self.done: Counter[str] = Counter()
        self.latest = float("-inf")
        self.failures: list[BaseException] = []

    def live(self, ops: int) -> None:
        threads = [
            threading.Thread(target=self._client, args=(n, ops // THREADS)) for n in range(THREADS)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failures:
            raise self.failures[0]

    def _client(self, n: int, ops: int) -> None:
        chance, asker = random.Random(f"{self.seed}/{n}"), Asker(self.site)
        mine: list[str] = []
        try:
            for op in range(ops):
                self._one(chance, asker, mine, f"{self.seed}-{n}-{op}")
        except BaseException as e:
            e.add_note(self._closed_connections())
            self.failures.append(e)
        finally:
            self.latest = max(self.latest, asker.latest)
            asker.close()

    def _closed_connections(self) -> str:
        """Say whether the supervisor closed connections: by its limits, or because it has ended."""
        code = None if self.site.process is None else self.site.process.poll()
        connection = self.site.connection(10)
        try:
            connection.request(
                "GET", "/api/metrics", headers={"Authorization": "Bearer " + self.site.token}
            )
            counters = json.loads(connection.getresponse().read())["counters"]
        except (OSError, http.client.HTTPException) as e:
            return f"exit code of the supervisor: {code}; it does not answer: {e!r}"
        finally:
            connection.close()
        closed = {k: v for k, v in counters.items() if k.startswith("connection.")}
        return f"exit code of the supervisor: {code}; connections that it closed: {closed}"

    def _one(self, chance: random.Random, asker: Asker, mine: list[str], name: str) -> None:
        what = (
            chance.choices(("run", "cancel", "status", "log", "call"), (5, 1, 3, 3, 2))[0]
            if mine
            else "run"
        )
        self.done[what] += 1
        wait = chance.choice((0.0, 0.0, 0.3))
        if what == "run":
            self._run(asker, name, chance)
            mine.append(name)
        elif what == "cancel":
            self._cancel(asker, name, chance)
        elif what == "call":
            args = {
                "uid": chance.choice(USERS),
                "jobCmd": "stateless_compute",
                "simulationType": "myapp",
                "method": "idealWeight",
                "args": {"height": 58},
                "deadlineSecs": 1.0,
            }
            code, said = asker.ask("call", 1.0 + CALL_SLACK_SECS, **args)
            assert (code, said) == (200, {"weight": 30.95}) or said["code"] in CALL_CODES, said
            self.done["call answered"] += code == 200
        else:
            run, (state, _) = self.runs[chance.choice(mine)]
            about = {"uid": run["uid"], "computeJid": jid_of(run), "waitSecs": wait}
            if what == "status":
                code, said = asker.ask("run-status", wait, **about)
                assert code == 200 and said["state"] in ("pending", "running", state), said
            else:
                code, said = asker.ask("job-log", wait + LOG_SLACK_SECS, **about)
                assert code == 200 or said["code"] in CALL_CODES, said
                self.done["log answered"] += code == 200

    def _run(self, asker: Asker, name: str, chance: random.Random) -> None:
        code = chance.choice((0, 0, 3))
        run = self.stamps.job(name, "echo said", code, uid=chance.choice(USERS))
        self.runs[name] = run, ("error" if code else "completed", code)
        serials = {self._submit(asker, name, run) for _ in range(chance.choice((1, 1, 2)))}
        assert len(serials) == 1, "the same request again is the same run"

    def _cancel(self, asker: Asker, name: str, chance: random.Random) -> None:
        """Submit a run that would never end, and cancel it at a random point of its start."""
        run = self.stamps.job(name, "sleep 600", uid=chance.choice(USERS), graceSecs=0.0)
        self.runs[name] = run, ("canceled", None)
        self._submit(asker, name, run)
        if chance.random() < 0.5:
            asker.ask("run-status", 0.3, uid=run["uid"], computeJid=jid_of(run), waitSecs=0.3)
        code, said = asker.ask(
            "run-cancel",
            SOON_SECS,
            reqId=f"cancel-{name}-{id(self)}",
            uid=run["uid"],
            computeJid=jid_of(run),
        )
        assert (code, said["state"]) == (200, "canceled"), said

    def _submit(self, asker: Asker, name: str, run: dict[str, Any]) -> int:
        code, said = asker.ask("run-simulation", SOON_SECS, reqId=f"hostile-{name}", run=run)
        assert code == 200, said
        serial: int = said["computeJobSerial"]
        return serial

    def reckon(self) -> None:
        """When all runs are over, check that each ended as on a good link, and that by its own
        stamps each started once.
        """
        for name, (run, (state, code)) in self.runs.items():
            said = self.site.wait(run, 10 * ROOM)
            assert said["state"] == state, (name, said)
            words = self.stamps.words(name)
            if state == "canceled":
                assert words in ([], ["start"]), (name, words)
            else:
                assert said["exit"]["code"] == code and words == ["start", "end"], (
                    name,
                    said,
                    words,
                )
                assert self.stamps.of(name)[0][1].split("/")[:2] == [
                    jid_of(run),
                    str(said["computeJobSerial"]),
                ]


@pytest.mark.timeout(3600 if SOAK else 240)
@pytest.mark.parametrize("first", range(0, SEEDS, SLICE))
def test_what_comes_out_of_a_hostile_link_is_what_comes_out_of_a_good_one(
    first: int, make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site(
        "slots.local_sequential=4", "limits.op_reply_secs=1", "limits.calls_per_user=1000"
    ).start()
    stamps, done, latest, ops = Stamps(tmp_path / "stamps"), Counter[str](), float("-inf"), 0
    with diverted(site) as proxy:
        for seed in range(first, first + SLICE):
            harm = harm_of(random.Random(seed))
            proxy.reseed(seed, harm)
            life = Life(site, stamps, seed)
            try:
                life.live(OPS)
                proxy.reseed(seed, NONE)
                life.reckon()
            except BaseException:
                print(f"seed {seed}: {harm}, connection {proxy.made}")
                raise
            done += life.done
            latest, ops = max(latest, life.latest), ops + sum(life.done.values())
        check_books(site)
        harms = proxy.done
    print(
        f"{SLICE} seeds from {first}, {ops} ops {dict(done)}; {sum(harms.values())} harms {dict(harms)}, {proxy.made} connections;"
        f" the latest answer came {latest:.2f} s after its deadline; 0 differences"
    )
    for name in ("late", "repeat", "swap", "slow", "lost", "cut"):
        assert harms[name + " up"] + harms[name + " down"] > 0, (
            f"no frame ever met this harm: {name}"
        )
    for way in ("up", "down"):
        assert sum(n for name, n in harms.items() if name.endswith(way)) > 10, (
            f"nothing that goes {way} was harmed: {harms}"
        )
    assert done["call answered"] > done["call"] / 5 and done["log answered"] > done["log"] / 5, done


def test_a_frame_that_is_cut_in_the_middle_is_never_read(
    make_site: MakeSite, tmp_path: Path
) -> None:
    """Every frame except those of the handshake is cut, in both directions, until the link is
    repaired.
    """
    site, stamps = make_site("slots.local_sequential=4").start(), Stamps(tmp_path / "stamps")
    with diverted(site, harm=Harm(cut=1.0)) as proxy:
        runs = {str(n): stamps.job(str(n)) for n in range(4)}
        for run in runs.values():
            site.submit(run)
        until(lambda: proxy.made > 4, "the agent came again and again")
        assert {site.status(run)["state"] for run in runs.values()} == {"pending"} and not list(
            stamps.folder.iterdir()
        )
        proxy.reseed(1, Harm())
        assert {site.wait(run)["state"] for run in runs.values()} == {"completed"}
    assert [stamps.words(name) for name in runs] == [["start", "end"]] * 4
