"""Messages survive the codec; any other input raises a FrameError with a code, and uses little
memory.
"""

import os
import tracemalloc
from collections.abc import Iterable
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.protocol.clusters.batch import BatchRequest, BatchState, ClusterStatus, Partition
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.debugging import Stop
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.protocol.jobs.inspection import Program
from jobscribe.protocol.wire import messages as m
from jobscribe.protocol.wire.codec import (
    MAX_BATCH,
    MAX_CHUNKS,
    MAX_DEPTH,
    MAX_FRAME,
    MAX_ITEMS,
    MAX_KEYS,
    MAX_LOST,
    MAX_MESSAGE,
    MAX_UNKNOWN,
    Decoder,
    Encoder,
    FrameError,
)
from jobscribe.protocol.wire.versions import SPOKEN

# ---- arbitrary messages

letters = "ABCDEFGHabcdefgh01234567"
text = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)
uids = st.text(letters, min_size=8, max_size=8)
op_ids = st.text(letters, min_size=32, max_size=32)
shell_ids = st.from_regex(r"[A-Za-z0-9]{32}", fullmatch=True)
names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True)
jids = st.builds(lambda u, s, c: f"{u}-{s}-{c}", uids, uids, names)
tokens = st.builds(
    Token, jids, st.integers(1, 2**53), st.integers(1, 1_000_000), names, st.integers(0, 1_000_000)
)
stops = st.builds(
    Stop,
    id=text,
    name=text,
    kind=st.sampled_from(["breakpoint", "error"]),
    file=text,
    line=st.integers(0, 2**31),
    function=text,
    error=text,
    host=text,
    pid=st.integers(0, 2**31),
    since=st.floats(0, 1e11),
    until=st.floats(0, 1e11),
    attached=st.booleans(),
)
keys = st.builds(
    AgentKey, st.just("local"), st.sampled_from(["sequential", "parallel"]), uids, st.just("host")
)
secs = st.floats(0.001, 1e6)
grace = st.floats(0, 3600)
instants = st.none() | st.floats(0, 1e11)
counts = st.integers(0, 2**62)
plain = st.dictionaries(
    text,
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | text
    | st.lists(counts, max_size=3),
    max_size=3,
)
texts = st.lists(text, max_size=2).map(tuple)
facts = st.builds(
    ExitFacts,
    memory_peak_bytes=st.none() | counts,
    memory_limit_bytes=st.none() | counts,
    memory_kills=st.none() | counts,
    kernel=texts,
    kernel_unread=st.none() | text,
    via_shell=st.none() | st.booleans(),
)
exits = st.builds(
    ExitInfo,
    facts=st.just(msgspec.UNSET) | facts,
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    core_dumped=st.booleans(),
    source=st.sampled_from(["keeper", "script", "start", "lost"]),
    stop_reason=st.none() | text,
    detail=st.none() | text,
    started_at=instants,
    ended_at=instants,
    user_secs=instants,
    system_secs=instants,
    max_rss_bytes=st.none() | counts,
    survivors_killed=counts,
    termination_message=st.none() | text,
    last_lines=st.none() | text,
    stdout_bytes=st.none() | counts,
    stderr_bytes=st.none() | counts,
    dropped_bytes=counts,
    report=st.none() | plain,
)
clusters = st.sampled_from(["hpc", "cori-2"])
moments = st.none() | st.floats(0, 1e11)
batches = st.builds(
    BatchState,
    cluster=clusters,
    job_id=st.none() | st.sampled_from(["1", "12_3", "7+1"]),
    state=text,
    reason=text,
    sentence=text,
    partition=text,
    account=text,
    nodes=text,
    submitted_at=moments,
    starts_at=moments,
    unknown_since=moments,
    restarts=st.integers(0, 9),
    canceled_by=text,
    run_dir=text,
)
wishes = st.builds(
    BatchRequest,
    cluster=st.none() | clusters,
    partition=st.none() | st.just("debug"),
    constraint=st.none() | st.just("a&[b|c]"),
    nodes=st.none() | st.integers(1, 1_000_000),
    memory_mb=st.none() | st.integers(1, 2**40),
    gpus=st.none() | st.integers(0, 1000),
    modules=st.lists(st.just("gcc/12.2"), max_size=2).map(tuple),
    setup=text,
    directives=st.lists(st.just("exclusive"), max_size=2).map(tuple),
    signal_secs=st.none() | st.integers(1, 65_535),
)
partitions = st.builds(
    Partition,
    name=text,
    default=st.booleans(),
    up=st.booleans(),
    nodes=st.none() | counts,
    cores_per_node=st.none() | counts,
    time_limit_secs=st.none() | secs,
    accounts=texts,
    qos=texts,
)
news = st.builds(
    ClusterStatus,
    cluster=clusters,
    at=st.floats(0, 1e11),
    scheduler=st.sampled_from(["up", "unreachable"]),
    detail=text,
    version=text,
    partitions=st.lists(partitions, max_size=2).map(tuple),
    accounts=st.none() | texts,
    qos=st.none() | texts,
)
exits = st.one_of(
    exits,
    st.builds(
        ExitInfo,
        source=st.just("scheduler"),
        code=st.none() | st.integers(0, 255),
        batch=batches,
        detail=text,
    ),
)
executions = st.builds(
    m.Execution,
    batch=st.just(msgspec.UNSET) | batches,
    token=tokens,
    state=st.sampled_from(["starting", "running", "ended"]),
    op_id=op_ids,
    pid=st.none() | st.integers(1, 2**22),
    start_ticks=st.none() | counts,
    started_at=instants,
    elapsed_secs=instants,
    exit=st.none() | exits,
)
specs = st.builds(
    m.TaskSpec,
    batch=st.just(msgspec.UNSET) | wishes,
    command=st.lists(text, max_size=4).map(tuple),
    run_dir=text,
    env=st.dictionaries(text, text, max_size=4),
    wrap=st.lists(text, max_size=2).map(tuple),
    time_limit_secs=st.none() | secs,
    grace_secs=grace,
    core_bytes=counts,
    app=st.none()
    | st.builds(
        m.AppInput, simulation_type=st.just("heat"), compute_model=st.just("m"), data=plain
    ),
)
ports = st.lists(st.integers(1, 65_535), max_size=4).map(tuple)
ARBITRARY: dict[type, st.SearchStrategy[Any]] = {
    m.Run: st.builds(m.Run, op_id=op_ids, token=tokens, spec=specs),
    m.Cancel: st.builds(m.Cancel, op_id=op_ids, token=tokens, reason=text, grace_secs=grace),
    m.ReleaseHold: st.builds(m.ReleaseHold, token=tokens),
    m.RunAck: st.builds(m.RunAck, tokens=st.lists(tokens, max_size=5).map(tuple)),
    m.RunStatus: st.builds(m.RunStatus, op_id=op_ids),
    m.ReadLog: st.builds(
        m.ReadLog,
        op_id=op_ids,
        token=tokens,
        stream=st.sampled_from(["stdout", "stderr"]),
        offset=counts,
        limit=st.integers(1, 512 * 1024),
        wait_secs=st.floats(0, 60),
    ),
    m.Call: st.builds(
        m.Call,
        op_id=op_ids,
        job_cmd=st.sampled_from(get_args(m.JobCmd)),
        simulation_type=st.sampled_from(["heat", "my_app"]),
        compute_model=st.sampled_from(["heatAnimation", "m"]),
        method=st.text(max_size=64),
        run_dir=st.none() | text,
        lib_dir=text,
        data=plain,
        args=plain,
        deadline_secs=secs,
        reply_limit=st.integers(1, m.REPLY_LIMIT),
    ),
    m.RunTasks: st.builds(
        m.RunTasks,
        op_id=op_ids,
        shared=st.builds(m.Shared, env=st.dictionaries(text, text, max_size=4), job=text),
        tasks=st.lists(
            st.builds(m.TaskRun, op_id=op_ids, token=tokens, spec=specs), max_size=3
        ).map(tuple),
    ),
    m.ProbePorts: st.builds(m.ProbePorts, op_id=op_ids, ports=ports),
    m.PortsProbed: st.builds(m.PortsProbed, op_id=op_ids, busy=ports),
    m.Samples: st.builds(
        m.Samples,
        samples=st.lists(
            st.builds(
                m.Sample,
                tokens,
                st.floats(0, 1e11),
                st.none() | st.floats(0, 1e6),
                st.none() | st.floats(0, 1e9),
                st.none() | counts,
                st.none() | counts,
                st.none() | counts,
                st.none() | counts,
                st.none() | st.floats(0, 100),
                st.none() | counts,
            ),
            max_size=3,
        ).map(tuple),
    ),
    m.ClusterReport: st.builds(m.ClusterReport, news=news),
    m.KeeperReport: st.builds(
        m.KeeperReport,
        answers=st.booleans(),
        since=st.none() | st.floats(0, 1e11),
        stopped=st.booleans(),
    ),
    m.CancelCall: st.builds(m.CancelCall, op_id=op_ids),
    m.ReadFile: st.builds(
        m.ReadFile,
        op_id=op_ids,
        run_dir=text,
        name=text,
        offset=counts,
        limit=st.integers(0, 512 * 1024),
    ),
    m.ListFiles: st.builds(
        m.ListFiles, op_id=op_ids, run_dir=text, after=text, limit=st.integers(1, 10_000)
    ),
    m.FileList: st.builds(
        m.FileList,
        op_id=op_ids,
        files=st.lists(st.builds(m.ListedFile, text, counts, st.floats(0, 1e11)), max_size=3).map(
            tuple
        ),
        more=st.booleans(),
        skipped=counts,
    ),
    m.OpenShell: st.builds(
        m.OpenShell,
        op_id=op_ids,
        token=tokens,
        shell_id=shell_ids,
        term=st.sampled_from(["dumb", "xterm-256color"]),
        rows=st.integers(1, 4096),
        cols=st.integers(1, 4096),
        program=st.just(msgspec.UNSET)
        | st.builds(
            Program,
            name=st.sampled_from(["stacks", "profile"]),
            native=st.booleans(),
            secs=st.floats(1, 3600),
            rate=st.integers(1, 1000),
        ),
    ),
    m.ShellIo: st.builds(
        m.ShellIo,
        op_id=op_ids,
        shell_id=shell_ids,
        input_at=counts,
        input=st.binary(max_size=200),
        offset=counts,
        limit=st.integers(0, m.RELAY_BYTES),
        wait_secs=st.floats(0, 60),
        rows=st.none() | st.integers(1, 4096),
        cols=st.none() | st.integers(1, 4096),
        close=st.booleans(),
    ),
    m.ShellOutput: st.builds(
        m.ShellOutput,
        op_id=op_ids,
        offset=counts,
        data=st.binary(max_size=200),
        input_at=counts,
        end=st.booleans(),
        code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 64),
        detail=text,
    ),
    m.DigestFile: st.builds(
        m.DigestFile,
        op_id=op_ids,
        run_dir=text,
        name=text,
        offset=counts,
        length=st.integers(0, m.DIGEST_BYTES),
    ),
    m.FileDigest: st.builds(
        m.FileDigest,
        op_id=op_ids,
        sha256=text,
        length=counts,
        size=counts,
        mtime_ns=st.integers(-(2**63), 2**63 - 1),
    ),
    m.StoreFile: st.builds(
        m.StoreFile,
        op_id=op_ids,
        run_dir=text,
        name=text,
        sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        size=counts,
        offset=counts,
        data=st.none() | st.binary(max_size=200),
        finish=st.booleans(),
        replace=st.booleans(),
    ),
    m.ListStops: st.builds(
        m.ListStops, op_id=op_ids, tokens=st.lists(tokens, max_size=3).map(tuple)
    ),
    m.AttachDebugger: st.builds(
        m.AttachDebugger, op_id=op_ids, token=tokens, name=st.just("12-1"), session=op_ids
    ),
    m.DebuggerIo: st.builds(
        m.DebuggerIo,
        op_id=op_ids,
        session=op_ids,
        data=st.binary(max_size=200),
        limit=st.integers(0, m.RELAY_BYTES),
        wait_secs=st.floats(0, 60),
        close=st.booleans(),
    ),
    m.Stops: st.builds(
        m.Stops,
        op_id=op_ids,
        found=st.lists(st.tuples(tokens, stops), max_size=2).map(tuple),
        more=st.booleans(),
    ),
    m.DebuggerOutput: st.builds(
        m.DebuggerOutput,
        op_id=op_ids,
        data=st.binary(max_size=200),
        end=st.booleans(),
        reason=text,
    ),
    m.KeepFile: st.builds(
        m.KeepFile,
        op_id=op_ids,
        lib_dir=text,
        name=st.text(max_size=128),
        offset=counts,
        data=st.binary(max_size=200),
        size=counts,
        mtime_ns=st.integers(-(2**63), 2**63 - 1),
    ),
    m.CallReply: st.builds(m.CallReply, op_id=op_ids, reply=st.binary(max_size=200)),
    m.FileChunk: st.builds(
        m.FileChunk,
        op_id=op_ids,
        data=st.binary(max_size=200),
        size=counts,
        mtime_ns=st.integers(-(2**63), 2**63 - 1),
    ),
    m.RunReport: st.builds(m.RunReport, token=tokens, report=plain, at=st.floats(0, 1e11)),
    m.Kill: st.builds(m.Kill, reason=text, stop_jobs=st.booleans()),
    m.Alive: st.builds(
        m.Alive,
        agent_id=op_ids,
        agent_key=keys,
        version=text,
        host=text,
        boot_id=text,
        pid=st.integers(1, 2**22),
        keeper_pid=st.integers(1, 2**22),
    ),
    m.Snapshot: st.builds(
        m.Snapshot,
        number=counts,
        page=counts,
        last=st.booleans(),
        executions=st.lists(executions, max_size=3).map(tuple),
    ),
    m.RunStatusUpdate: st.builds(m.RunStatusUpdate, execution=executions),
    m.LogChunk: st.builds(
        m.LogChunk,
        op_id=op_ids,
        offset=counts,
        next_offset=counts,
        data=st.binary(max_size=200),
        dropped=counts,
        end=st.booleans(),
    ),
    m.OpError: st.builds(m.OpError, op_id=op_ids, code=text, error=text),
}
DIRECTION: dict[type, m.Direction] = {
    **dict.fromkeys(get_args(m.ToAgent), "to_agent"),
    **dict.fromkeys(get_args(m.ToSupervisor), "to_supervisor"),
}


def test_every_message_is_here() -> None:
    assert ARBITRARY.keys() == DIRECTION.keys()


@settings(max_examples=1_000 if os.environ.get("SOAK") else 30, deadline=None)
@pytest.mark.parametrize("kind", ARBITRARY, ids=lambda k: k.__name__)
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    sent = data.draw(st.lists(ARBITRARY[kind], min_size=1, max_size=4))
    limit = data.draw(st.sampled_from([512, 1024, MAX_FRAME]))
    frames = list(Encoder(limit).frames(sent))
    assert max(map(len, frames)) <= limit
    assert received(Decoder(DIRECTION[kind], limit), frames) == sent


def received(decoder: Decoder, frames: Iterable[bytes]) -> list[Any]:
    return [message for frame in frames for message in decoder.messages(frame)]


# ---- large messages and many


def chunk(data: bytes) -> m.LogChunk:
    return m.LogChunk(op_id="o" * 32, offset=0, next_offset=len(data), data=data)


def packed_size(message: Any) -> int:
    return len(msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,))))


@pytest.mark.parametrize("over", range(-3, 4))
def test_frames_around_the_limit_are_whole_or_in_chunks_and_never_over_it(over: int) -> None:
    limit = 4096
    data = b"x" * 3000
    data += b"x" * (limit - 256 - 1 - packed_size(chunk(data)) + over)
    frames = list(Encoder(limit).frames([chunk(data)]))
    assert len(frames) == (2 if over > 0 else 1)
    assert max(map(len, frames)) <= limit
    assert received(Decoder("to_supervisor", limit), frames) == [chunk(data)]


def test_the_largest_message_passes_and_a_larger_one_is_refused_before_it_is_sent() -> None:
    room = (
        MAX_MESSAGE - packed_size(chunk(b"")) - 3 - 4
    )  # a longer header for the bytes, a longer next_offset
    largest = chunk(b"x" * room)
    frames = list(Encoder().frames([largest]))
    assert len(frames) == 17
    assert received(Decoder("to_supervisor"), frames) == [largest]
    with pytest.raises(FrameError) as e:
        list(Encoder().frames([chunk(b"x" * (room + 1))]))
    assert (e.value.code, e.value.close) == ("tooLarge", False)


def test_what_came_before_a_refused_message_is_sent() -> None:
    good = m.OpError(op_id="o" * 32, code="notFound", error="e")
    frames: list[bytes] = []
    with pytest.raises(FrameError):
        for frame in Encoder().frames([good, chunk(b"x" * MAX_MESSAGE), good]):
            frames.append(frame)
    assert received(Decoder("to_supervisor"), frames) == [good]


def test_a_message_with_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FrameError) as e:
        list(Encoder().frames([m.Kill(reason="\udcff")]))
    assert (e.value.code, e.value.close) == ("malformed", False)


@pytest.mark.parametrize("sample", ["run_status_update", "run_status_update/batch"])
def test_full_pages_of_a_snapshot_are_never_too_many_keys_for_one_frame(
    samples: Any, sample: str
) -> None:
    execution = samples[sample][1].execution
    pages = [
        m.Snapshot(number=1, page=n, last=n == 3, executions=(execution,) * m.SNAPSHOT_PAGE)
        for n in range(4)
    ]
    assert received(Decoder("to_supervisor"), Encoder().frames(pages)) == pages


def test_more_keys_than_the_other_end_reads_are_refused_before_they_are_sent() -> None:
    def run(n: int) -> m.Run:
        spec = m.TaskSpec(command=("c",), run_dir="d", env={str(i): "" for i in range(n)})
        return m.Run(op_id="o" * 32, token=Token("EPRSqtUW-IVh7w74d-m", 1, 1, "r", 0), spec=spec)

    fixed = 4 + 10 + 3  # keys of the message, the spec and the frame
    most = run(MAX_KEYS - fixed)
    assert received(Decoder("to_agent"), Encoder().frames([most])) == [most]
    with pytest.raises(FrameError) as e:
        list(Encoder().frames([run(MAX_KEYS - fixed + 1)]))
    assert (e.value.code, e.value.close) == ("tooLarge", False)


def test_a_longer_list_than_the_other_end_reads_is_refused_before_it_is_sent() -> None:
    token = Token("EPRSqtUW-IVh7w74d-m", 1, 1, "r", 0)
    most = m.RunAck(tokens=(token,) * MAX_ITEMS)
    assert received(Decoder("to_agent"), Encoder().frames([most])) == [most]
    with pytest.raises(FrameError, match="tooLarge"):
        list(Encoder().frames([m.RunAck(tokens=(token,) * (MAX_ITEMS + 1))]))


def test_many_small_messages_share_frames() -> None:
    sent = [m.RunStatus(op_id=f"{n:032d}") for n in range(MAX_BATCH * 2 + 1)]
    frames = list(Encoder().frames(sent))
    assert len(frames) == 3
    assert received(Decoder("to_agent"), frames) == sent
    assert list(Encoder().frames([])) == []


# ---- frames lost, repeated, out of order


def numbered(n: int, max_frame: int = MAX_FRAME) -> list[bytes]:
    encoder = Encoder(max_frame)
    return [frame for i in range(n) for frame in encoder.frames([m.RunStatus(op_id=f"{i:032d}")])]


@pytest.mark.parametrize(
    ("order", "news", "gaps"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], 0),
        ([0, 2, 3], [0, 2, 3], 1),
        ([0, 0, 1, 1], [0, 1], 0),
        ([1], [1], 1),
        ([0, 2, 1, 3], [0, 2, 3], 1),
    ],
)
def test_a_lost_frame_is_a_gap_and_a_late_or_repeated_one_is_no_news(
    order: list[int], news: list[int], gaps: int
) -> None:
    frames = numbered(4)
    decoder = Decoder("to_agent")
    assert [int(x.op_id) for x in received(decoder, [frames[i] for i in order])] == news
    assert decoder.gaps == gaps


def test_a_number_out_of_all_reason_does_not_silence_the_connection() -> None:
    decoder = Decoder("to_agent")
    for seq in (MAX_LOST + 1, 2**63):
        with pytest.raises(FrameError) as e:
            decoder.messages(frame(seq, m=[KILL]))
        assert e.value.close
    assert decoder.messages(frame(1, m=[KILL])) == [m.Kill(reason="r")]


def test_a_message_whose_chunk_was_lost_is_dropped_and_the_next_one_is_whole() -> None:
    encoder = Encoder(512)
    first, second = chunk(b"1" * 1000), chunk(b"2" * 1000)
    one, two = list(encoder.frames([first])), list(encoder.frames([second]))
    assert len(one) == len(two) == 5
    for lost in range(len(one)):
        decoder = Decoder("to_supervisor", 512)
        assert received(decoder, [*one[:lost], *one[lost + 1 :], *two]) == [second]
        assert decoder.gaps == 1


def test_chunks_of_different_messages_are_never_put_together() -> None:
    body = msgpack.packb([msgspec.to_builtins(m.RunStatus(op_id="o" * 32))])
    decoder = Decoder("to_agent")
    assert decoder.messages(frame(id=1, i=0, of=2, d=body[:9])) == []
    assert decoder.messages(frame(2, id=2, i=1, of=2, d=body[9:])) == []
    assert decoder.messages(frame(3, id=1, i=1, of=2, d=body[9:])) == []
    assert decoder.messages(frame(4, id=3, i=0, of=2, d=body[:9])) == []
    assert decoder.messages(frame(5, id=3, i=1, of=3, d=body[9:])) == []


def test_chunks_of_more_than_a_message_end_the_connection() -> None:
    decoder = Decoder("to_agent")
    part = b"x" * (MAX_FRAME - 256)
    with pytest.raises(FrameError) as e:
        for n in range(18):
            decoder.messages(frame(n + 1, id=1, i=n, of=18, d=part))
    assert (e.value.code, e.value.close) == ("tooLarge", True)
    with pytest.raises(FrameError, match="tooLarge"):
        Decoder("to_agent").messages(frame(1, id=1, i=0, of=MAX_CHUNKS + 1, d=b""))


# ---- invalid frames


def frame(seq: Any = 1, v: Any = SPOKEN.newest, **rest: Any) -> bytes:
    return bytes(msgpack.packb({"v": v, "seq": seq, **rest}))


def nested(depth: int, kind: type) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value} if kind is dict else [value]
    return value


ALIKE = {"op": "run_status", "opId": "o" * 32}
KILL = {"op": "kill", "reason": "r"}
RUN = {
    "op": "run",
    "opId": "o" * 32,
    "token": ["EPRSqtUW-IVh7w74d-m", 1, 1, "r", 0],
    "spec": {"command": ["a"], "runDir": "d"},
}
BAD: dict[str, tuple[bytes | str, str]] = {
    "nothing": (b"", "malformed"),
    "text": ("{}", "malformed"),
    "not a map": (msgpack.packb([1, 2]), "malformed"),
    "a number": (b"\x01", "malformed"),
    "the byte that is never used": (b"\xc1", "malformed"),
    "cut short": (frame(m=[ALIKE])[:-1], "malformed"),
    "something behind": (frame(m=[ALIKE]) + b"\x00", "malformed"),
    "another version": (frame(v=SPOKEN.newest + 1, m=[ALIKE]), "malformed"),
    "a version that is not a number": (frame(v=True, m=[ALIKE]), "malformed"),
    "no version": (msgpack.packb({"seq": 1, "m": []}), "malformed"),
    "seq 0": (frame(0, m=[]), "malformed"),
    "seq as text": (frame("1", m=[]), "malformed"),
    "seq as bool": (frame(True, m=[]), "malformed"),
    "a foreign key": (frame(m=[], x=1), "malformed"),
    "m and chunk": (frame(m=[], id=1, i=0, of=1, d=b""), "malformed"),
    "m is no list": (frame(m={}), "malformed"),
    "a message is no map": (frame(m=[1]), "malformed"),
    "too many messages": (frame(m=[ALIKE] * (MAX_BATCH + 1)), "malformed"),
    "a chunk of text": (frame(id=1, i=0, of=1, d="text"), "malformed"),
    "a chunk beyond its end": (frame(id=1, i=1, of=1, d=b""), "malformed"),
    "a negative chunk": (frame(id=1, i=-1, of=1, d=b""), "malformed"),
    "a chunk with bad content": (frame(id=1, i=0, of=1, d=b"\xc1"), "malformed"),
    "unknown op": (frame(m=[{"op": "destroy"}]), "unknownOp"),
    "an op of the other direction": (frame(m=[{"op": "alive"}]), "unknownOp"),
    "no op": (frame(m=[{"opId": "o" * 32}]), "malformed"),
    "op is no text": (frame(m=[{"op": 7}]), "malformed"),
    "more foreign fields than are ignored": (
        frame(m=[ALIKE | {f"extra{n}": 1 for n in range(MAX_UNKNOWN + 1)}]),
        "malformed",
    ),
    "a missing field": (frame(m=[{"op": "run_status"}]), "malformed"),
    "a wrong type": (frame(m=[KILL | {"stopJobs": 1}]), "malformed"),
    "a wrong id": (frame(m=[{"op": "run_status", "opId": "../" + "o" * 29}]), "malformed"),
    "text too long": (frame(m=[{"op": "kill", "reason": "r" * 8193}]), "malformed"),
    "not a number": (
        frame(m=[RUN | {"spec": {"command": ["a"], "runDir": "d", "graceSecs": float("nan")}}]),
        "malformed",
    ),
    "infinity": (
        frame(m=[RUN | {"spec": {"command": ["a"], "runDir": "d", "timeLimitSecs": float("inf")}}]),
        "malformed",
    ),
    "the same key twice": (b"\x83\xa1v\x02\xa3seq\x01\xa3seq\x01", "malformed"),
    "the same key twice, deeper": (
        b"\x83\xa1v\x02\xa3seq\x01\xa1m\x91\x82\xa2op\xa1a\xa2op\xa1b",
        "malformed",
    ),
    "a key that is a number": (b"\x81\x01\x01", "malformed"),
    "a key that is a list": (b"\x81\x90\x01", "malformed"),
    "a key of bytes": (frame(m=[{b"op": "kill", "reason": ""}]), "malformed"),
    "bad UTF-8": (b"\x83\xa1v\x02\xa3seq\x01\xa1m\x91\x81\xa2op\xa2\xff\xfe", "malformed"),
    "bad UTF-8 in a key": (b"\x81\xa2\xff\xfe\x01", "malformed"),
    "an extension type": (frame(m=[msgpack.ExtType(5, b"data")]), "malformed"),
    "a timestamp": (frame(m=[msgpack.Timestamp(1, 0)]), "malformed"),
    "a timestamp in a field": (frame(m=[KILL | {"reason": msgpack.Timestamp(1, 0)}]), "malformed"),
    "too deep": (frame(m=nested(MAX_DEPTH, list)), "tooDeep"),
    "maps too deep": (frame(m=nested(MAX_DEPTH, dict)), "tooDeep"),
    "deeper than any stack": (frame(m=[])[:-1] + b"\x91" * 100_000 + b"\xc0", "malformed"),
    "a frame over the limit": (frame(m=[], x=b"x" * MAX_FRAME), "tooLarge"),
    "too many keys": (frame(m=[dict.fromkeys(map(str, range(MAX_KEYS)), 0)]), "tooLarge"),
    "too many keys in many maps": (
        frame(m=[dict.fromkeys(map(str, range(100)), 0)] * 101),
        "tooLarge",
    ),
    "too long a list": (frame(m=[0] * (MAX_ITEMS + 1)), "malformed"),
    "a list that claims 4 billion": (b"\xdd\xff\xff\xff\xff", "malformed"),
    "a map that claims 4 billion": (b"\xdf\xff\xff\xff\xff", "malformed"),
    "text that claims 4 GB": (b"\xdb\xff\xff\xff\xff", "malformed"),
    "bytes that claim 4 GB": (b"\xc6\xff\xff\xff\xff", "malformed"),
    "an extension that claims 4 GB": (b"\xc9\xff\xff\xff\xff\x05", "malformed"),
    "lists in lists that all claim 100,000": (b"\xdd\x00\x01\x86\xa0" * 900, "malformed"),
    "maps in maps that all claim 10,000": (b"\xde\x27\x10\xa1a" * 900, "malformed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_by_its_code(name: str) -> None:
    bad, code = BAD[name]
    peaks = []
    for _ in range(2):  # the interpreter's table of all interned keys grows at most once
        tracemalloc.start()
        try:
            with pytest.raises(FrameError) as e:
                Decoder("to_agent").messages(bad)  # type: ignore[arg-type]
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert e.value.code == code
    assert e.value.close == (code != "unknownOp")
    # a four-digit key takes six bytes in a frame, but an object and a dictionary slot in memory
    assert min(peaks) < 128 * len(bad) + 1_000_000, "memory in no proportion to the frame"


def test_the_deepest_allowed_frame_is_not_too_deep() -> None:
    with pytest.raises(FrameError, match="op=None"):
        Decoder("to_agent").messages(frame(m=nested(MAX_DEPTH - 1, list)))


@pytest.mark.parametrize(
    "field", ["startedAt", "elapsedSecs", "submittedAt", "startsAt", "unknownSince"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_a_time_that_json_cannot_hold_never_gets_in(samples: Any, field: str, value: float) -> None:
    plain = msgspec.to_builtins(samples["run_status_update/batch"][1])
    for place in (
        plain["execution"],
        plain["execution"]["exit"],
        plain["execution"]["batch"],
        plain["execution"]["exit"]["batch"],
    ):
        if field in place:
            before, place[field] = place[field], value
            with pytest.raises(FrameError, match="malformed"):
                Decoder("to_supervisor").messages(frame(m=[plain]))
            place[field] = before


def test_the_other_messages_of_a_frame_with_an_unknown_op_are_not_lost() -> None:
    decoder = Decoder("to_agent")
    with pytest.raises(FrameError) as e:
        decoder.messages(frame(m=[ALIKE, {"op": "later"}, KILL]))
    assert e.value.messages == [m.RunStatus(op_id="o" * 32), m.Kill(reason="r")]
    assert decoder.messages(frame(2, m=[KILL])) == [m.Kill(reason="r")]
    assert decoder.gaps == 0
