"""The shipped exit table, a site's own rows, and the report of all errors in them at once, each
with its line.
"""

import pathlib
import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.diagnosis.exit_table import LINE_CHARS, SEEN_CHARS, Row, Table, classified, diagnose
from jobscribe.diagnosis.safe_patterns import TABLE_SIZE, rule_size
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.exit_info import FAULTS, SCHEDULER_END_STATES, ExitInfo
from jobscribe.protocol.jobs.status import StopReason
from jobscribe.schema.text.document import MAX_DEPTH
from jobscribe.schema.text.reader import MAX_BYTES
from jobscribe.service.settings.settings import ExitSettings, Settings, SupervisorSettings
from jobscribe.service.site import startup_checks
from jobscribe.service.site.exit_table_file import SHIPPED, load

TABLE = load(None)
EVERY_EXIT = [
    *(ExitInfo(code=n) for n in range(1, 256)),
    *(ExitInfo(signal=n) for n in range(1, 65)),
    ExitInfo(),
    ExitInfo(source="lost"),
    *(ExitInfo(source="start", fault=f) for f in (None, "new", *FAULTS)),
    *(ExitInfo(code=n, out_of_memory=True) for n in (1, 137)),
    *(
        ExitInfo(code=n, source="engine", out_of_memory=m)
        for n in (1, 125, 126, 127, 137, 143)
        for m in (True, False)
    ),
    *(
        ExitInfo(
            code=n, signal=s, source=w, batch=BatchState(cluster="hpc", job_id="1", state=word)
        )
        for word in (*sorted(SCHEDULER_END_STATES), "FAILED", "COMPLETED", "RUNNING", "A_NEW_WORD")
        for n, s, w in (
            (None, None, "scheduler"),
            (None, 15, "scheduler"),
            (143, None, "script"),
            (3, None, "script"),
        )
    ),
    ExitInfo(signal=9, out_of_memory=True),
    *(ExitInfo(signal=15, stop_reason=r) for r in ("new", *get_args(StopReason))),
]


# ---- the shipped table


def test_the_shipped_table_has_rows_and_hints_and_says_what_to_do() -> None:
    hints = [r for r in TABLE.rows if r.when.log]
    assert len(TABLE.rows) >= 40 and len(hints) >= 12
    told = {r.phrase for r in TABLE.rows if not r.solutions}
    assert told == {"attempt decided", "try again", "try again later"}
    assert all(r.reason.endswith(".") for r in TABLE.rows)


@pytest.mark.parametrize(
    "exit_",
    EVERY_EXIT,
    ids=lambda e: "-".join(
        map(
            str,
            (
                e.stop_reason,
                e.source,
                e.fault,
                e.code,
                e.signal,
                e.out_of_memory,
                *([e.batch.state] if isinstance(e.batch, BatchState) else ()),
            ),
        )
    ),
)
def test_what_is_built_in_and_what_ships_decide_alike(exit_: ExitInfo) -> None:
    """The simulator uses the built-in table, a supervisor the shipped table."""
    row, built_in = classified(exit_, TABLE), classified(exit_, Table())
    assert row in TABLE.rows
    assert (row.type, row.behavior) == (built_in.type, built_in.behavior)


def of_a_container(code: int | None = None, **fields: object) -> ExitInfo:
    """Return an exit as the engine's inspection reports it: code or signal, OOMKilled, start and
    end time.
    """
    return ExitInfo(
        code=code, source="engine", started_at=1_767_600_002.25, ended_at=1_767_600_009.5, **fields
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        # killed by another user (`docker kill`), by jobscribe, by the kernel
        (of_a_container(signal=9, out_of_memory=False), (3009, "platform", "transient")),
        (
            of_a_container(signal=9, out_of_memory=False, stop_reason="cancel"),
            (1001, "user", "permanent"),
        ),
        (
            of_a_container(signal=9, out_of_memory=False, stop_reason="timeLimit"),
            (1002, "user", "permanent"),
        ),
        (
            of_a_container(signal=15, out_of_memory=False, stop_reason="decided"),
            (1006, "user", "permanent"),
        ),
        (of_a_container(signal=15, out_of_memory=False), (3015, "platform", "transient")),
        (of_a_container(signal=9, out_of_memory=True), (2001, "user", "permanent")),
        (of_a_container(137, out_of_memory=True), (2001, "user", "permanent")),
        (of_a_container(signal=9), (3009, "platform", "transient")),
        # the kernel killed a child for lack of memory: a success stays a success, a failure keeps
        # its code
        (of_a_container(0, out_of_memory=True), None),
        (of_a_container(0, out_of_memory=False), None),
        (of_a_container(3, out_of_memory=True), (2001, "user", "permanent")),
        (of_a_container(3, out_of_memory=False), (9000, "unknown", "unknown")),
        (
            of_a_container(0, out_of_memory=True, stop_reason="timeLimit"),
            (1002, "user", "permanent"),
        ),
        # the container ran, so 125, 126 and 127 are the command's own codes
        (of_a_container(125, out_of_memory=False), (9000, "unknown", "unknown")),
        (of_a_container(126, out_of_memory=False), (4126, "user", "permanent")),
        (of_a_container(127, out_of_memory=False), (4127, "user", "permanent")),
        (of_a_container(signal=11, out_of_memory=False), (3011, "user", "unknown")),
        # the container never ran; the exit code of the engine's client does not matter
        (
            ExitInfo(
                source="start",
                fault="engineRefused",
                detail="h1: Range of CPUs is from 0.01 to 2.00",
            ),
            (2023, "platform", "transient"),
        ),
        (
            ExitInfo(
                source="start",
                fault="noShell",
                detail='h1: exec: "/bin/sh": stat /bin/sh: no such file or directory',
            ),
            (2016, "user", "permanent"),
        ),
        (ExitInfo(source="start", code=127, fault="noShell"), (2016, "user", "permanent")),
        (
            ExitInfo(source="start", fault="imageMissing", detail="manifest unknown"),
            (2017, "user", "permanent"),
        ),
        (
            ExitInfo(source="start", fault="pullDenied", detail="pull access denied"),
            (2018, "user", "permanent"),
        ),
        (
            ExitInfo(source="start", fault="volumeRefused", detail="no such folder"),
            (2019, "user", "permanent"),
        ),
        (
            ExitInfo(source="start", fault="registryUnreachable", detail="dial tcp: i/o timeout"),
            (2021, "platform", "conflict"),
        ),
        (
            ExitInfo(source="start", fault="pullTimeout", detail="not there after 600 s"),
            (2022, "platform", "conflict"),
        ),
        (
            ExitInfo(
                source="start",
                fault="subnetTaken",
                detail="Pool overlaps with other one on this address space",
            ),
            (2024, "platform", "transient"),
        ),
        (
            ExitInfo(source="start", fault="imageMissing", stop_reason="cancel"),
            (1001, "user", "permanent"),
        ),
        # removed by another user
        (
            ExitInfo(source="lost", detail="its container was removed from h1"),
            (2030, "platform", "transient"),
        ),
        (
            ExitInfo(
                source="lost", detail="its container was removed from h1", stop_reason="cancel"
            ),
            (1001, "user", "permanent"),
        ),
    ],
)
def test_how_containers_end(exit_: ExitInfo, expected: tuple[int, str, str] | None) -> None:
    found = diagnose(exit_, TABLE)
    assert (None if found is None else (found.code, found.type, found.behavior)) == expected
    assert exit_.succeeded is (expected is None)


def by_slurm(state: str, code: int | None = None, **fields: object) -> ExitInfo:
    batch = BatchState(cluster="hpc", job_id="4711", state=state)
    return ExitInfo(
        code=code, batch=batch, **{"source": "scheduler" if code is None else "script", **fields}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        (by_slurm("CANCELLED"), (2040, "unknown", "permanent")),
        # the same, if the script could still record its program's exit code
        (by_slurm("CANCELLED", 143), (2040, "unknown", "permanent")),
        (by_slurm("CANCELLED", signal=15, stop_reason="cancel"), (1001, "user", "permanent")),
        (by_slurm("NODE_FAIL"), (2041, "platform", "transient")),
        (by_slurm("PREEMPTED", 143), (2042, "platform", "transient")),
        (by_slurm("DEADLINE"), (2043, "user", "permanent")),
        (by_slurm("TIMEOUT", signal=15, stop_reason="timeLimit"), (1002, "user", "permanent")),
        (by_slurm("OUT_OF_MEMORY", out_of_memory=True), (2001, "user", "permanent")),
        # the program's own exit, which Slurm only repeats
        (by_slurm("FAILED", 3), (9000, "unknown", "unknown")),
        (by_slurm("FAILED", 200), (4200, "user", "transient")),
        (by_slurm("FAILED", signal=11), (3011, "user", "unknown")),
        # the program was over before the node failed: a success stays a success
        (by_slurm("NODE_FAIL", 0), None),
        (
            ExitInfo(source="start", fault="neverPossible", detail="PartitionTimeLimit"),
            (2026, "user", "permanent"),
        ),
        (
            ExitInfo(source="start", fault="batchRefused", detail="Invalid account"),
            (2025, "user", "permanent"),
        ),
        (
            ExitInfo(source="start", fault="schedulerUnreachable", detail="x"),
            (2027, "platform", "conflict"),
        ),
        (by_slurm("NODE_FAIL", source="lost"), (2030, "platform", "transient")),
    ],
)
def test_how_runs_on_clusters_end(exit_: ExitInfo, expected: tuple[int, str, str] | None) -> None:
    found = diagnose(exit_, TABLE)
    assert (None if found is None else (found.code, found.type, found.behavior)) == expected


def test_a_row_for_an_end_of_slurm_s_that_there_is_not_is_refused(tmp_path: pathlib.Path) -> None:
    row = "rows:\n  - {code: 70001, phrase: x, type: user, behavior: permanent, when: {slurm: [%s]}, reason: r}\n"
    assert load(own(tmp_path, row % "NODE_FAIL")).rows[0].when.slurm == ("NODE_FAIL",)
    with pytest.raises(
        Refusal, match=r'when\.slurm\[0\]: it is the text "NODE_FAILED"; right: one of .*NODE_FAIL'
    ):
        load(own(tmp_path, row % "NODE_FAILED"))


def test_no_output_of_a_container_makes_another_kind_of_its_end() -> None:
    plain, printed = (
        of_a_container(3, out_of_memory=False, last_lines=text)
        for text in (None, "x\nKilled\nno such image: oom-killed\n")
    )
    a, b = diagnose(plain, TABLE), diagnose(printed, TABLE)
    assert (
        a is not None
        and b is not None
        and (a.code, a.behavior) == (b.code, b.behavior) == (9000, "unknown")
    )


def test_every_fault_has_a_row_of_its_own_and_advice() -> None:
    rows = {fault: classified(ExitInfo(source="start", fault=fault), TABLE) for fault in FAULTS}
    assert len({row.code for row in rows.values()}) == len(FAULTS)
    assert [f for f, row in rows.items() if row.when.fault != (f,) or not row.solutions] == []
    assert all(len(advice) > 20 for advice in FAULTS.values())


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "Python module missing"),
        ("ImportError: cannot import name 'x' from 'y'", "Python module missing"),
        ("SyntaxError: invalid syntax", "Python syntax"),
        ("IndentationError: unexpected indent", "Python syntax"),
        ("numpy.linalg.LinAlgError: Singular matrix", "Python exception"),
        ("ValueError: no", "Python exception"),
        ("KeyError: 'x'", "Python exception"),
        ("asyncio.exceptions.CancelledError", "Python exception"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "GPU out of memory",
        ),
        ("RuntimeError: CUDA error: out of memory", "GPU out of memory"),
        ("call failed: CUDA_ERROR_OUT_OF_MEMORY", "GPU out of memory"),
        ("CUDA driver version is insufficient for CUDA runtime version", "GPU driver"),
        (
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
            "GPU driver",
        ),
        ("CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered", "GPU memory error"),
        ("dd: error writing '/x': No space left on device", "disk full"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk full"),
        ("bash: line 1: frobnicate: command not found", "named command not found"),
        ("sh: 1: frobnicate: not found", "named command not found"),
        ("/run/x/script.sh: line 3: frobnicate: command not found", "named command not found"),
        ("bash: ./x: Permission denied", "no permission"),
        ("PermissionError: [Errno 13] Permission denied: '/etc/shadow'", "no permission"),
        ("Killed", "no memory to be had"),
        ("job.sh: line 7: 12345 Killed                  ./solver", "no memory to be had"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "no memory to be had"),
        ("MemoryError", "no memory to be had"),
        (
            "./solver: error while loading shared libraries: libfftw3.so.3: cannot open shared object file",
            "library missing",
        ),
        (
            "./a: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./a)",
            "library missing",
        ),
        ("cat: in.dat: No such file or directory", "file not found"),
        ("FileNotFoundError: [Errno 2] nothing", "file not found"),
        ("[node1:77] Signal code: Address not mapped (1)", "MPI crash"),
        (
            "mpirun noticed that process rank 2 with PID 0 on node n1 exited on signal 11 (Segmentation fault).",
            "MPI crash",
        ),
        ("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD", "MPI abort"),
        ("There are not enough slots available in the system to satisfy the 64 slots", "MPI abort"),
        (
            "job.sh: line 2: 88 Segmentation fault      (core dumped) ./a",
            "segmentation fault in the output",
        ),
        ("Floating point exception (core dumped)", "floating point"),
        ("ZeroDivisionError: division by zero", "floating point"),
        ("Fortran runtime error: End of file", "Fortran runtime"),
        (
            "forrtl: severe (174): SIGSEGV, segmentation fault occurred",
            "segmentation fault in the output",
        ),
        ("forrtl: severe (24): end-of-file during read", "Fortran runtime"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "Slurm",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", "Slurm"),
        ("OSError: [Errno 98] Address already in use", "address in use"),
        ("connect: Connection refused", "peer not reached"),
        ("socket.gaierror: [Errno -2] Name or service not known", "peer not reached"),
        ("OSError: [Errno 24] Too many open files", "too many open files"),
        # similar text that must not match
        ("0 errors found", None),
        ("loss: 0.1, error: 0.02", None),
        ("Killed 3 rabbits", None),
        ("page not found", None),
        ("the room: 12: not foundation", None),
        ("no error", None),
        ("Error", None),
        ("out of memories", None),
        ("done", None),
    ],
)
def test_a_line_of_output_leads_to_its_hint_and_to_nothing_else(
    line: str, hint: str | None
) -> None:
    found = diagnose(ExitInfo(code=1, last_lines=f"step 1\n{line}\n\n"), TABLE)
    assert found is not None
    assert (found.hint, found.matched) == (hint, line if hint else None)
    assert (found.code, found.type, found.behavior) == (9000, "unknown", "unknown")


def test_a_job_cannot_print_itself_out_of_being_tried_again() -> None:
    found = diagnose(ExitInfo(signal=9, last_lines="CUDA out of memory"), TABLE)
    assert found is not None
    assert (found.behavior, found.type, found.hint) == (
        "transient",
        "platform",
        "GPU out of memory",
    )


# ---- a site's own rows


def own(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "own.yml"
    path.write_text(text)
    return str(path)


ROW = """
  - code: {code}
    phrase: {phrase}
    type: user
    behavior: conflict
    when: {when}
    reason: Because.
"""


def test_rows_of_a_site_come_first_and_replace_those_with_the_same_code(
    tmp_path: pathlib.Path,
) -> None:
    rows = ROW.format(code=70001, phrase="licence", when="{codes: [42]}") + ROW.format(
        code=3011, phrase="crash", when="{signals: [segv, 6]}"
    )
    table = load(own(tmp_path, f"rows:{rows}"))
    assert [r.phrase for r in table.rows[:2]] == ["licence", "canceled"]
    assert [r.code for r in table.rows[1:]] == [r.code for r in TABLE.rows]
    assert classified(ExitInfo(code=42), table).phrase == "licence"
    for number in (6, 11):
        assert classified(ExitInfo(signal=number), table).phrase == "crash"
    assert len(table.rows) == len(TABLE.rows) + 1


def test_text_stays_text_and_names_of_signals_are_read(tmp_path: pathlib.Path) -> None:
    text = "rows:" + ROW.format(
        code=70001, phrase="no", when="{signals: [SIGUSR1, usr2, 34], stop: []}"
    ).replace(", stop: []", "")
    (row, *_) = load(own(tmp_path, text)).rows
    assert (row.phrase, row.when.signals, row.solutions) == ("no", (10, 12, 34), ())


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("rows: []", ["F:1: rows: it has 0 elements; right: a list of 1 to 500"]),
        ("[]", ["F:1: it is an empty list; right: an object with rows"]),
        ("", ["F: it is nothing; right: an object with rows"]),
        ("row: []", ["F:1: row: unknown key; right: `rows`", "F:1: rows: it is missing"]),
        (
            "rows: [{}]",
            [
                "F:1: rows[0].code: it is missing; right: a whole number, 1,000 to 99,999",
                "F:1: rows[0].phrase: it is missing; right: one line of text, 1 to 60 characters",
                "F:1: rows[0].type: it is missing; right: one of user, platform, resource, unknown",
                "F:1: rows[0].behavior: it is missing; right: the effect of a retry",
                "F:1: rows[0].when: it is missing; right: an object with conditions",
                "F:1: rows[0].reason: it is missing",
            ],
        ),
        (
            "rows: [x, {}]",
            [
                'F:1: rows[0]: it is the text "x"; right: an object',
                "F:1: rows[1].code: it is missing",
            ],
        ),
        (
            "more: 1\nrows:" + ROW.format(code=70001, phrase="p", when="{codes: [1]}"),
            ["F:1: more: unknown key; right: the keys here are rows"],
        ),
        (
            "rows:" + ROW.format(code=137, phrase="p", when="{codes: [1]}"),
            ["F:2: rows[0].code: it is 137; right: a whole number, 1,000 to 99,999"],
        ),
        (
            "rows:" + ROW.format(code="yes", phrase="p", when="{codes: [1]}"),
            ['F:2: rows[0].code: it is the text "yes"; right: a whole number'],
        ),
        (
            "rows:" + ROW.format(code="true", phrase="p", when="{codes: [1]}"),
            ["F:2: rows[0].code: it is true; right: a whole number"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{code: [1]}"),
            ["F:6: rows[0].when.code: unknown key; right: `codes`"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{codes: [0, 256, x, 1]}"),
            [
                "when.codes[0]: it is 0; right: a whole number, 1 to 255",
                "when.codes[1]:",
                "when.codes[2]:",
            ],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{codes: 7}"),
            ["F:6: rows[0].when.codes: it is 7; right: a list of 1 to 300"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{signals: [SIGNOPE, 65]}"),
            [
                'when.signals[0]: it is the text "SIGNOPE"; right: a signal',
                "when.signals[1]: it is 65",
            ],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{signals: [9], codes: [1]}"),
            ["F:6: rows[0].when.codes: an exit has either a signal or a code"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{stop: [cancel], codes: [1]}"),
            ["when.stop: ", "right: no other condition"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{memory: false}"),
            ["when.memory: it is false; right: true"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{source: [strat]}"),
            ['when.source[0]: it is the text "strat"; right: one of keeper'],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="[]"),
            ["F:6: rows[0].when: it is an empty list; right: an object"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{log: [x]}"),
            ["F:5: rows[0].behavior: ", "right: remove this key"],
        ),
        (
            "rows:"
            + ROW.format(code=70001, phrase="p", when="{log: ['(?=a)b', '(', 7]}").replace(
                "    behavior: conflict\n", ""
            ),
            [
                "when.log[0]: it must not have lookaround",
                "when.log[1]: it must be a regular expression as RE2 has them: ",
                "when.log[2]: it is 7; right: a text",
            ],
        ),
        (
            "rows:"
            + ROW.format(code=70001, phrase="p", when="{codes: [1]}")
            .replace("user", "usr")
            .replace("conflict", "later"),
            [
                'F:4: rows[0].type: it is the text "usr"; right: one of user, platform',
                'F:5: rows[0].behavior: it is the text "later"; right: one of transient',
            ],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="p", when="{codes: [1]}") * 2,
            [
                "F:9: rows[1].code: it is also that of rows[0]",
                "F:10: rows[1].phrase: it is also that of rows[0]",
            ],
        ),
        (
            "rows:"
            + ROW.format(code=70001, phrase="p", when="{codes: [1]}").replace("reason", "raeson"),
            [
                "F:7: rows[0].raeson: unknown key; right: `reason`",
                "F:2: rows[0].reason: it is missing",
            ],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase='"a\\nb"', when="{codes: [1]}"),
            ["F:3: rows[0].phrase: ", "right: one line of text"],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase='"a\\e[2Jb"', when="{codes: [1]}"),
            ["F:3: rows[0].phrase: ", "right: one line of text"],
        ),
        (
            "rows:"
            + ROW.format(code=70001, phrase="p", when="{codes: [1]}")
            + "    solutions: [ok, '']\n",
            ['F:8: rows[0].solutions[1]: it is the text ""; right: one line of text'],
        ),
        (
            "rows:" + ROW.format(code=70001, phrase="canceled", when="{codes: [1]}"),
            ["F:3: rows[0].phrase: it is also that of the shipped row 1001"],
        ),
        # YAML syntax variants
        ("rows: [\n  {", ["F:2: it is not YAML"]),
        ("rows: &a []\nmore: *a", ["F:1: ", "is an anchor", "F:2: ", "is an alias"]),
        ("rows: !!python/object/apply:os.system [x]", ["F:1: ", "is a tag"]),
        ("a: 1\na: 2", ['F:2: a: "a" occurs twice, first in line 1']),
        ("--- 1\n--- 2\n", ["F:2: a second document begins"]),
        ("\tx: 1", ["F:1: it is not YAML"]),
        ("{[a]: 1}", ["F:1: a key is an object or a list"]),
        (
            "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
            ["F:1: it has more than 16 levels of nesting"],
        ),
        ("[" * 100_000, ["F:1: it has more than 16 levels of nesting"]),
        ("a\x00b", ["F:1: it contains a NUL"]),
    ],
)
def test_a_wrong_table_is_refused_with_every_mistake_in_its_place(
    tmp_path: pathlib.Path, rows: str, told: list[str]
) -> None:
    path = own(tmp_path, rows)
    with pytest.raises(Refusal) as e:
        load(path)
    assert e.value.code == "badConfig"
    sentence = e.value.sentence.replace(path, "F")
    assert [t for t in told if t not in sentence] == [], sentence


def test_a_table_that_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "latin.yml").write_bytes(b"rows: \xff")
    (tmp_path / "big.yml").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, word in (
        ("none.yml", "No such file"),
        (".", "directory"),
        ("latin.yml", "UTF-8"),
        ("big.yml", f"more than {MAX_BYTES} bytes"),
    ):
        with pytest.raises(Refusal, match=word) as e:
            load(str(tmp_path / name))
        assert e.value.code == "badConfig"


def test_many_mistakes_are_counted(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refusal) as e:
        load(own(tmp_path, "rows: [" + "x," * 60 + "]"))
    assert e.value.sentence.count("right: an object") == 50
    assert e.value.sentence.endswith("\n  and 10 more")


def test_config_check_reads_the_table_too(tmp_path: pathlib.Path) -> None:
    supervisor = SupervisorSettings(development=True)
    assert (
        list(
            startup_checks.problems(
                Settings(root="/nowhere", supervisor=supervisor, exits=ExitSettings(table=SHIPPED))
            )
        )
        == []
    )
    (problem,) = startup_checks.problems(
        Settings(
            root="/nowhere",
            supervisor=supervisor,
            exits=ExitSettings(table=own(tmp_path, "rows: 1")),
        )
    )
    assert problem.code == "badConfig" and "own.yml" in problem.sentence


def test_the_example_in_the_documentation_is_a_table(tmp_path: pathlib.Path) -> None:
    page = (pathlib.Path(__file__).parents[4] / "docs/exits.md").read_text(encoding="utf-8")
    table = load(own(tmp_path, page.split("```yaml\n")[1].split("```")[0]))
    found = diagnose(ExitInfo(code=1, last_lines="FATAL: negative volume in cell 12"), table)
    assert found is not None and (found.hint, found.phrase) == ("mesh", "failed")
    assert classified(ExitInfo(code=42), table).phrase == "no licence"
    assert [f for f in FAULTS if f"`{f}`" not in page] == [] and [
        r for r in get_args(StopReason) if f"`{r}`" not in page
    ] == []


# ---- limits of rules


def test_all_rules_together_have_a_limit(tmp_path: pathlib.Path) -> None:
    rule = "'a.{0,40}b.{0,40}c'"
    rows = "".join(
        ROW.format(code=70000 + n, phrase=f"p{n}", when=f"{{log: [{rule}]}}").replace(
            "    behavior: conflict\n", ""
        )
        for n in range(TABLE_SIZE // rule_size(rule.strip("'")) + 1)
    )
    with pytest.raises(Refusal, match="all rows together"):
        load(own(tmp_path, f"rows:{rows}"))


def hostile() -> list[str]:
    """Return output of maximum length, repeating the first words of the patterns."""
    words = [
        "a",
        " ",
        "x ",
        "Killed",
        "mpirun noticed that process rank 1 ",
        "slurmstepd: error: ",
        "srun: error: Unable to ",
        "a: 1: ",
        "a.",
        "1",
    ]
    return [(word * LINE_CHARS)[: LINE_CHARS - 1] + "\n" for word in words]


@pytest.mark.timeout(60)
def test_no_output_holds_the_loop() -> None:
    """The promised limit is one second; the test allows five for busy machines."""
    for line in hostile():
        text = line * (SEEN_CHARS // len(line) + 1)
        begun = time.process_time()
        diagnose(ExitInfo(code=1, last_lines=text, termination_message=text), TABLE)
        assert time.process_time() - begun < 5, line[:40]


def test_rows_are_plain_data_that_compare() -> None:
    assert load(None) == TABLE and isinstance(TABLE.rows[0], Row)
