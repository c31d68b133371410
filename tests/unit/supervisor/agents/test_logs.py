"""The source of an agent's log, by driver: a local file, the agent itself, or the copies from its
last start. Also the messages if there is no log.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.drivers.sbatch import log_archive
from jobscribe.protocol.api.requests import AgentLogs
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import FileChunk, ReadFile
from jobscribe.supervisor.agents.logs import AgentLogReader

UID, SECRET = "qsOpzxM9", "averylongsecretvalue42"
FAR = AgentKey("sbatch", "sequential", UID, "main")
BOXED = AgentKey("docker", "sequential", UID, "h1")


class Hub:
    """An agent whose log is a fixed text."""

    def __init__(self, text: bytes) -> None:
        self.connections: dict[AgentKey, Any] = {}
        self.asked: list[ReadFile] = []
        self._text = text

    def agent_id(self, key: AgentKey) -> str:
        return {"sbatch": "AAA1", "docker": "AAA2"}[key.driver] + "x" * 28

    async def ask(self, key: AgentKey, op: ReadFile, secs: float, type_: Any) -> FileChunk:
        self.asked.append(op)
        if op.name != "agent.log":
            raise Refusal("notFound", "no such file")
        return FileChunk(
            op_id=op.op_id,
            data=self._text[op.offset : op.offset + op.limit],
            size=len(self._text),
            mtime_ns=0,
        )


def books(root: Path, hub: Hub) -> AgentLogReader:
    record = SimpleNamespace(
        handle={"folder": "/home/ann/agent/x", "name": "srj-x"}, last_failure=None
    )
    views = {
        key: SimpleNamespace(phase="away", since=None, record=record, placed=set())
        for key in (FAR, BOXED)
    }
    engine = SimpleNamespace(world=SimpleNamespace(agents=views), agent_record=lambda key: record)
    log = SimpleNamespace(redactor=Redactor([SECRET]))
    desk = SimpleNamespace(
        evidence_root=str(root / "agent"), user_root=str(root / "user"), engine=engine, log=log
    )
    return AgentLogReader(desk, hub)  # type: ignore[arg-type]


def wish(key: AgentKey, **fields: Any) -> AgentLogs:
    return AgentLogs(agent=str(key), **fields)


async def test_on_a_cluster_it_comes_through_the_agent_bounded_and_redacted(tmp_path: Path) -> None:
    hub = Hub(b"x" * 50 + f" {SECRET} end\n".encode())
    hub.connections[FAR] = SimpleNamespace(alive=None)
    piece = await books(tmp_path, hub).read(FAR, wish(FAR, tail=28))
    assert piece.text == " <REDACTED> end\n" and (piece.offset, piece.next_offset) == (50, 78)
    assert piece.where == "main:/home/ann/agent/x/agent.log" and {
        op.run_dir for op in hub.asked
    } == {"/home/ann/agent/x"}


async def test_no_piece_ends_within_a_line_or_a_secret(tmp_path: Path) -> None:
    text = b"".join(b"line %d %s\n" % (n, SECRET.encode()) for n in range(9))
    hub = Hub(text)
    hub.connections[FAR] = SimpleNamespace(alive=None)
    shown, at = "", 0
    while at < len(text):
        piece = await books(tmp_path, hub).read(FAR, wish(FAR, offset=at, limit=70))
        shown, at = shown + piece.text, piece.next_offset
    assert shown == "".join(f"line {n} <REDACTED>\n" for n in range(9))
    assert (await books(tmp_path, hub).read(FAR, wish(FAR, tail=45))).text == "line 8 <REDACTED>\n"


async def test_while_it_is_away_the_copy_of_its_last_start_is_shown(tmp_path: Path) -> None:
    for n in (1, 2):
        log_archive.keep(
            str(tmp_path / "user"),
            UID,
            "main",
            f"life {n} {SECRET}\n".encode(),
            b"",
            Redactor(),
            now=1_795_300_000.0 + n,
        )
    piece = await books(tmp_path, Hub(b"")).read(FAR, wish(FAR))
    assert piece.text == "life 2 <REDACTED>\n" and piece.where.endswith("-remote.log")
    assert (await books(tmp_path, Hub(b"")).read(FAR, wish(FAR, previous=True))).text == piece.text


@pytest.mark.parametrize(
    ("key", "fields", "says"),
    [
        (FAR, {}, "the agent is not connected, and there is no copy yet"),
        (BOXED, {}, "on host h1 type: docker logs srj-x"),
        (BOXED, {"part": "keeper"}, "a keeper writes only about errors"),
        (BOXED, {"previous": True}, "has no lines of an earlier process"),
    ],
)
async def test_where_there_is_none_it_is_said(
    tmp_path: Path, key: AgentKey, fields: dict[str, Any], says: str
) -> None:
    piece = await books(tmp_path, Hub(b"")).read(key, wish(key, **fields))
    assert piece.text == "" and says in piece.sentence


async def test_a_link_in_an_agents_folder_leads_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "agent" / str(BOXED)
    folder.mkdir(parents=True)
    (tmp_path / "other").write_text("not yours\n")
    (folder / "agent.log").symlink_to(tmp_path / "other")
    assert (await books(tmp_path, Hub(b"")).read(BOXED, wish(BOXED))).text == ""


def test_an_agent_is_found_by_its_id_if_that_is_of_one(tmp_path: Path) -> None:
    found = books(tmp_path, Hub(b""))
    assert found.find("AAA2", UID) == BOXED and found.find(str(FAR), None) == FAR
    more = found._hub.agent_id(BOXED)[
        :5
    ]  # a longer prefix than logs show is secret, and a lookup must not reveal it
    for name, uid, code in (
        ("AAA3", UID, "notFound"),
        ("AAA2", "qsOpzxM8", "notFound"),
        (str(FAR), "qsOpzxM8", "notFound"),
        ("?", UID, "badRequest"),
        (more, UID, "badRequest"),
    ):
        with pytest.raises(Refusal) as e:
            found.find(name, uid)
        assert e.value.code == code
    found._hub.agent_id = lambda key: "AAAA" + key.driver
    with pytest.raises(Refusal, match="several"):
        found.find("AAAA", UID)


def test_the_list_names_a_log_only_where_there_is_one_and_the_cluster_that_it_is_on(
    tmp_path: Path,
) -> None:
    hub = Hub(b"")
    hub.agent_id = lambda key: "WUt4" + "b" * 28  # type: ignore[attr-defined]

    def logs_of() -> dict[str, Any]:
        return {row["agent"]: row["log"] for row in books(tmp_path, hub).rows(None)}

    assert logs_of() == {str(FAR): "main:/home/ann/agent/x/agent.log", str(BOXED): None}
    path = tmp_path / "agent" / str(BOXED) / "agent.log"
    path.parent.mkdir(parents=True)
    path.write_text("a line\n")
    assert logs_of()[str(BOXED)] == str(path)
