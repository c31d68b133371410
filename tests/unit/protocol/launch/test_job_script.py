"""The script of an execution runs exactly the requested command with any shell: every byte, every
exit status, and no extra process.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.launch.job_script import export_lines, script
from jobscribe.protocol.wire.messages import TaskSpec
from jobscribe.runtime.execution.folder import from_code

pytestmark = pytest.mark.process

TOKEN = Token("user1234-sim12345-command", 17, 2, "worker", 3)
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"]}
PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    name = str(request.param)
    if not any(os.access(f"{d}/{name}", os.X_OK) for d in ("/bin", "/usr/bin")):
        pytest.skip(f"there is no {name} here")
    return SHELLS[name]


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "evidence of it's own"
    path.mkdir()
    return path


class Ran:
    """Result of a script that ran as the keeper runs it."""

    def __init__(
        self,
        shell: list[str],
        evidence: Path,
        *command: str,
        env: Mapping[str, str] = PATH,
        own: Mapping[str, str] = {},
        replaced: Mapping[str, str] = {},
        **spec: object,
    ) -> None:
        for old in evidence.iterdir():
            old.unlink()
        run_dir = str(spec.pop("run_dir", evidence.parent / "run"))
        text = script(
            TOKEN, TaskSpec(command=command, run_dir=run_dir, env=dict(own), **spec), env, evidence
        )  # type: ignore[arg-type]
        for old_text, new_text in replaced.items():
            text = text.replace(old_text, new_text)
        (evidence / "script.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
        files = {1: evidence / "out", 2: evidence / "signal", 3: evidence / "err"}
        pid = os.posix_spawnp(
            shell[0],
            [*shell, str(evidence / "script.sh")],
            {},
            setsid=True,
            setsigdef=[signal.SIGPIPE],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, fd, str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for fd, path in files.items()
            ],
        )
        self.code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.out = files[1].read_bytes()
        self.err, self.words = (evidence / "err").read_text(), (evidence / "signal").read_text()
        self.written = (evidence / "exit-code").read_text()


def test_the_contract_and_the_environment(shell: list[str], evidence: Path) -> None:
    ran = Ran(shell, evidence, "env", "-0", env={**PATH, "A": "login", "B": "it's\nlogin"})
    got = dict(e.split("=", 1) for e in ran.out.decode().split("\0") if e)
    assert got["JOBSCRIBE_TOKEN"] == "user1234-sim12345-command/17/2/worker/3" == str(TOKEN)
    assert got["JOBSCRIBE_COMPUTE_JID"] == "user1234-sim12345-command"
    assert (got["JOBSCRIBE_SERIAL"], got["JOBSCRIBE_ATTEMPT"]) == ("17", "2")
    assert (got["JOBSCRIBE_TASK_ROLE"], got["JOBSCRIBE_TASK_INDEX"]) == ("worker", "3")
    assert got["JOBSCRIBE_RUN_DIR"] == str(evidence.parent / "run") == got["PWD"]
    assert got["JOBSCRIBE_TERMINATION_MESSAGE"] == f"{evidence}/termination-message"
    assert got["JOBSCRIBE_REPORT"] == f"{evidence}/report.jsonl"
    assert (got["PYTHONUNBUFFERED"], got["PYTHONFAULTHANDLER"]) == ("1", "1")
    assert (got["A"], got["B"]) == ("login", "it's\nlogin")
    assert set(got) - {"OLDPWD", "_", "SHLVL"} == {
        "PATH",
        "A",
        "B",
        "PWD",
        "PYTHONUNBUFFERED",
        "PYTHONFAULTHANDLER",
        "JOBSCRIBE_TOKEN",
        "JOBSCRIBE_COMPUTE_JID",
        "JOBSCRIBE_SERIAL",
        "JOBSCRIBE_ATTEMPT",
        "JOBSCRIBE_TASK_ROLE",
        "JOBSCRIBE_TASK_INDEX",
        "JOBSCRIBE_RUN_DIR",
        "JOBSCRIBE_TERMINATION_MESSAGE",
        "JOBSCRIBE_REPORT",
    }


def test_the_tasks_environment_wins_over_the_logins_and_the_contract_over_both(
    shell: list[str], evidence: Path
) -> None:
    env = {"A": "task", "PYTHONUNBUFFERED": "", "JOBSCRIBE_SERIAL": "forged"}
    text = script(TOKEN, TaskSpec(command=("true",), run_dir="/r", env=env), {"A": "login"}, "/e")
    (evidence / "s").write_text(text.replace("'/r'", "'/'") + "\n")
    assert (
        "export A='task'" in text
        and "export PYTHONUNBUFFERED=''" in text
        and "export JOBSCRIBE_SERIAL='17'" in text
    )
    assert "login" not in text and "forged" not in text


def test_names_that_shells_keep_for_themselves_reach_the_command(
    shell: list[str], evidence: Path
) -> None:
    odd = {
        "UID": "7",
        "IFS": "x",
        "BASH_FUNC_module%%": "() { :; }",
        "PPID": "1",
        "with.dot": "d",
        "PWD": "/nowhere",
    }
    ran = Ran(shell, evidence, "env", "-0", env={**PATH, **odd})
    got = dict(e.split("=", 1) for e in ran.out.decode().split("\0") if e)
    assert {k: got.get(k) for k in odd} == odd


@pytest.mark.parametrize(
    ("command", "code", "written", "spoke"),
    [
        (("sh", "-c", "exit 0"), 0, "0\n", False),
        (("sh", "-c", "exit 137"), 137, "137\n", False),
        (("sh", "-c", "kill -9 $$"), 137, "137\n", True),
        (("sh", "-c", "kill -15 $$"), 143, "143\n", True),
        (("sh", "-c", "kill -SEGV $$"), 139, "139\n", True),
        (("sh", "-c", "kill -34 $$"), 162, "162\n", True),
        (("sh", "-c", "kill -2 $$"), 130, "130\n", False),
        (("sh", "-c", "kill -13 $$"), 141, "141\n", False),
        (("sh", "-c", "kill -2 0"), 130, "130\n", True),
    ],
)
def test_the_exit_is_written_and_a_signal_leaves_words(
    shell: list[str],
    evidence: Path,
    command: tuple[str, ...],
    code: int,
    written: str,
    spoke: bool,
) -> None:
    ran = Ran(shell, evidence, *command)
    assert (ran.code, ran.written, bool(ran.words), ran.err) == (code, written, spoke, "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exit 130", {"code": 130}),
        ("exit 137", {"code": 137}),
        ("exit 141", {"code": 141}),
        ("kill -9 $$", {"signal": 9, "coreDumped": False}),
        ("kill -13 $$", {"code": 141}),  # shells print nothing for SIGPIPE
        ("kill -2 0", {"signal": 2, "coreDumped": False}),
    ],
)
def test_a_signal_is_told_from_an_exit_code_of_128_and_more(
    shell: list[str], evidence: Path, text: str, found: dict[str, object]
) -> None:
    ran = Ran(shell, evidence, "sh", "-c", text)
    assert from_code(str(evidence), ran.code) == found


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("no-such-program", 127),
        ("/no/such", 127),
        ("/etc/passwd", 126),
        ("/etc", 126),
        ("-x", 127),
        ("exit", 127),
        ("set", 127),
    ],
)
def test_what_cannot_be_executed_is_said_on_stderr(
    shell: list[str], evidence: Path, command: str, code: int
) -> None:
    ran = Ran(shell, evidence, command, "3")
    assert (ran.code, ran.written, ran.words) == (code, f"{code}\n", "")
    assert command in ran.err


def test_a_program_is_run_and_not_a_builtin_of_its_name(shell: list[str], evidence: Path) -> None:
    assert Ran(shell, evidence, "echo", "-n", "a\\tb").out == b"a\\tb"


def test_no_process_but_the_shell_and_the_command(shell: list[str], evidence: Path) -> None:
    """The command's parent is the shell that the keeper started, and that shell started no other
    process.
    """
    ran = Ran(
        shell, evidence, "sh", "-c", "tr '\\0' ' ' </proc/$PPID/cmdline; echo; echo $(($$ - $PPID))"
    )
    parent, distance = ran.out.decode().splitlines()
    assert parent.strip() == " ".join([*shell, str(evidence / "script.sh")])
    assert ran.code == 0 and int(distance) != 0
    text = script(TOKEN, TaskSpec(command=("true",), run_dir="/r"), PATH, "/e")
    assert (
        "$(" not in text.replace('"$(ulimit -H -c)"', "")
        and "`" not in text
        and "|" not in text.replace("||", "")
    )


def test_the_call_of_a_function_is_in_a_file_and_in_no_environment(
    shell: list[str], evidence: Path
) -> None:
    call = "e" * 120_000  # a variable of a process may have 128 KiB with its name
    text = 'stat -c %a "$FUNCTION_CALL_FILE"; env | grep -c eeee; umask'
    ran = Ran(shell, evidence, "sh", "-c", text, own={"FUNCTION_CALL": call})
    assert ran.out == b"600\n0\n0077\n"
    assert (evidence / "function-call").read_text() == call


def test_the_wrap_goes_in_front(shell: list[str], evidence: Path) -> None:
    assert Ran(shell, evidence, "printf", "%s", "a b", wrap=("nice", "-n", "3")).out == b"a b"
    assert Ran(shell, evidence, "x y", wrap=("printf", "%s-%s", "1")).out == b"1-x y"


def test_the_command_has_descriptors_0_1_and_2_only(shell: list[str], evidence: Path) -> None:
    ran = Ran(shell, evidence, "sh", "-c", "echo to err >&2; ls /proc/$$/fd")
    assert [n for n in ran.out.decode().split() if int(n) < 10] == ["0", "1", "2"]
    assert ran.err == "to err\n"


@pytest.mark.parametrize("size", [0, 4096, 1 << 20])
def test_the_core_limit(shell: list[str], evidence: Path, size: int) -> None:
    ran = Ran(shell, evidence, "cat", "/proc/self/limits", core_bytes=size)
    assert (
        next(line for line in ran.out.decode().splitlines() if "core file" in line).split()[4:6]
        == [str(size)] * 2
    )


def test_a_core_in_systemd_coredump_is_copied_on_its_machine(
    shell: list[str], evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for coredumpctl, which knows a core some time after the end of its process."""
    place = evidence.parent / "bin"
    place.mkdir()
    asked, program = place / "asked", place / "coredumpctl"
    program.write_text(
        f"""#!/bin/sh
echo "$@" >>'{asked}'
[ "$(wc -l <'{asked}')" -gt 1 ] || {{ echo 'No coredumps found.' >&2; exit 1; }}
echo a core >"${{3#--output=}}"
"""
    )
    program.chmod(0o755)
    (place / "core_pattern").write_text("|/usr/lib/systemd/systemd-coredump %P\n")
    (place / "core_uses_pid").write_text("0\n")
    files = {"/proc/sys/kernel/core_": f"'{place}'/core_"}
    path = {"PATH": f"{place}:{PATH['PATH']}"}
    for text, size, copied in (
        ("exit 3", 1 << 20, 0),
        ("kill -SEGV $$", 0, 0),
        ("kill -SEGV $$", 1 << 20, 1),
    ):
        Ran(shell, evidence, "sh", "-c", text, env=path, core_bytes=size, replaced=files)
        assert [f.read_text() for f in evidence.glob("cores/*")] == ["a core\n"] * copied
    first, second = asked.read_text().splitlines()
    run_dir = evidence.parent / "run"
    assert first == second and first.endswith(f"COREDUMP_UID={os.getuid()} COREDUMP_CWD={run_dir}")
    program.unlink()
    for old in evidence.glob("cores/*"):
        old.unlink()
    (evidence / "cores").rmdir()
    Ran(shell, evidence, "sh", "-c", "kill -SEGV $$", env=path, core_bytes=1 << 20, replaced=files)
    assert not (evidence / "cores").exists() and not (evidence / "core-error").exists()


def test_a_core_limit_above_what_the_machine_allows_gets_that(
    shell: list[str], evidence: Path
) -> None:
    text = script(
        TOKEN,
        TaskSpec(command=("sh", "-c", "ulimit -c"), run_dir=str(evidence), core_bytes=1 << 40),
        PATH,
        evidence,
    )
    (evidence / "s").write_text(f"ulimit -c 8\n{text}")
    as_nobody = {"user": 65534} if os.getuid() == 0 else {}
    evidence.chmod(0o777)
    (evidence / "s").chmod(0o644)
    top = evidence
    while top != top.parent and as_nobody:  # an ordinary user needs access to the parent folders
        top = top.parent
        if top.stat().st_uid == os.getuid() and not top.stat().st_mode & 0o001:
            top.chmod(top.stat().st_mode | 0o011)
    done = subprocess.run(
        [*shell, str(evidence / "s")],
        capture_output=True,
        text=True,
        env={},
        check=False,
        **as_nobody,
    )  # type: ignore[call-overload]
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_the_run_directory_is_made_when_it_is_missing_and_entered(
    shell: list[str], evidence: Path
) -> None:
    deep = evidence.parent / "a b" / "c'd" / "new\nline"
    assert Ran(shell, evidence, "pwd", run_dir=deep).out.decode() == f"{deep}\n"


def test_a_run_directory_that_cannot_be_entered_is_126_and_said(
    shell: list[str], evidence: Path
) -> None:
    (evidence.parent / "file").touch()
    ran = Ran(shell, evidence, "echo", "ran", run_dir=evidence.parent / "file" / "x")
    assert (ran.code, ran.written, ran.out) == (126, "126\n", b"")
    assert "file" in ran.err and ran.words == ""


def test_sigterm_to_the_shell_does_not_keep_it_from_writing_the_exit(
    shell: list[str], evidence: Path
) -> None:
    ran = Ran(
        shell, evidence, "sh", "-c", "kill -TERM $PPID; kill -HUP $PPID; kill -INT $PPID; exit 9"
    )
    assert (ran.code, ran.written) == (9, "9\n")


def test_the_command_starts_with_default_signals(shell: list[str], evidence: Path) -> None:
    ran = Ran(shell, evidence, "cat", "/proc/self/status")
    signals = dict(line.split() for line in ran.out.decode().splitlines() if line.startswith("Sig"))
    assert (signals["SigCgt:"], signals["SigBlk:"]) == ("0" * 16, "0" * 16)


def test_by_hand_it_runs_the_same_and_leaves_the_evidence_alone(
    shell: list[str], evidence: Path
) -> None:
    Ran(shell, evidence, "sh", "-c", "echo out; echo err >&2; exit 5")
    (evidence / "exit-code").write_text("the truth")
    by_hand = subprocess.run(
        [*shell, str(evidence / "script.sh")], capture_output=True, text=True, env={}, check=False
    )
    assert (by_hand.returncode, by_hand.stdout, by_hand.stderr) == (5, "out\n", "err\n")
    assert (evidence / "exit-code").read_text() == "the truth"


def test_the_umask_is_the_one_given(shell: list[str], evidence: Path) -> None:
    assert Ran(shell, evidence, "sh", "-c", "umask").out == b"0077\n"
    assert "umask 0027\n" in script(
        TOKEN, TaskSpec(command=("true",), run_dir="/r"), {}, "/e", umask="0027"
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30),
        min_size=1,
        max_size=5,
    ),
    value=st.text(
        st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30
    ),
)
def test_any_text_arrives_as_it_is(
    shell: list[str], evidence: Path, words: list[str], value: str
) -> None:
    ran = Ran(
        shell,
        evidence,
        "sh",
        "-c",
        'printf "%s\\0" "$@" "$VALUE"',
        "x",
        *words,
        env=PATH | {"VALUE": value},
    )
    assert ran.out.decode().split("\0")[:-1] == [*words, value]


def test_every_byte_arrives_as_it_is(shell: list[str], evidence: Path) -> None:
    every = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    ran = Ran(shell, evidence, "printf", "%s", every)
    assert ran.out == bytes(range(1, 256))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"command": ()}, "empty"),
        ({"command": ("",)}, "empty"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"run_dir": "relative"}, "absolute"),
        ({"run_dir": "/a\0"}, "NUL"),
        ({"env": {"A": "\0"}}, "NUL"),
        ({"env": {"A=B": ""}}, "environment variable"),
        ({"env": {"": ""}}, "environment"),
        ({"wrap": ("a\0",)}, "NUL"),
    ],
)
def test_what_no_process_can_be_given_is_refused(spec: dict[str, object], said: str) -> None:
    with pytest.raises(Refusal, match=said) as e:
        script(TOKEN, TaskSpec(**{"command": ("true",), "run_dir": "/r", **spec}), {}, "/e")  # type: ignore[arg-type]
    assert e.value.code == "badRequest"


def by_hand(
    shell: list[str], evidence: Path, commands: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run these commands in the shell that `--shell` starts."""
    return subprocess.run(
        [*shell, str(evidence / "script.sh"), "--shell"],
        input=commands,
        capture_output=True,
        text=True,
        env=variables,
        check=False,
        cwd="/",
    )


def test_by_hand_it_gives_a_shell_that_stands_where_the_command_stood(
    shell: list[str], evidence: Path
) -> None:
    login = {**PATH, "A": "login", "SHELL": "/bin/sh"}
    Ran(
        shell,
        evidence,
        "sh",
        "-c",
        "echo the job; exit 5",
        env=login,
        run_dir=evidence.parent / "a dir",
    )
    (evidence / "exit-code").write_text("the truth")
    asked = 'pwd; echo "$A"; echo "$JOBSCRIBE_TOKEN"; umask; echo err >&2; { true >&3; } 2>/dev/null && echo open; exit 7'
    said = by_hand(shell, evidence, asked)
    assert said.stdout.splitlines() == [str(evidence.parent / "a dir"), "login", str(TOKEN), "0077"]
    assert (said.returncode, said.stderr) == (7, "err\n")
    assert (evidence / "exit-code").read_text() == "the truth", (
        "what is done by hand is nobody's exit"
    )


def test_by_hand_it_is_the_shell_of_the_login_or_any(shell: list[str], evidence: Path) -> None:
    mine = evidence.parent / "my shell"
    mine.write_text("#!/bin/sh\necho mine\n")
    mine.chmod(0o700)
    Ran(shell, evidence, "true", env={**PATH, "SHELL": str(mine)})
    assert by_hand(shell, evidence, "echo other").stdout == "mine\n"
    Ran(shell, evidence, "true")
    assert by_hand(shell, evidence, "echo other").stdout == "other\n"


def test_by_hand_names_that_are_none_to_a_shell_are_there_too(
    shell: list[str], evidence: Path
) -> None:
    Ran(shell, evidence, "true", env={**PATH, "odd-name": "it's odd", "SHELL": "/usr/bin/env"})
    assert "odd-name=it's odd" in by_hand(shell, evidence, "").stdout.splitlines()


def test_by_hand_in_a_directory_that_is_gone_it_is_made_again(
    shell: list[str], evidence: Path
) -> None:
    Ran(shell, evidence, "true")
    (evidence.parent / "run").rmdir()
    assert by_hand(shell, evidence, "pwd").stdout == f"{evidence.parent}/run\n"


@pytest.mark.parametrize("argument", ["", "run", "shell", "--shell=", "-x"])
def test_with_any_other_argument_it_does_what_the_job_did(
    shell: list[str], evidence: Path, argument: str
) -> None:
    Ran(shell, evidence, "sh", "-c", "echo the job; exit 5")
    done = subprocess.run(
        [*shell, str(evidence / "script.sh"), argument],
        capture_output=True,
        text=True,
        env={},
        check=False,
    )
    assert (done.returncode, done.stdout) == (5, "the job\n")


def test_shared_lines_win_over_the_login_and_not_over_the_task(
    shell: list[str], evidence: Path
) -> None:
    lines = export_lines({"A": "shared 'a'", "B": "shared", "C": "$HOME"})
    spec = TaskSpec(command=("env", "-0"), run_dir=str(evidence.parent), env={"B": "own"})
    (evidence / "s").write_text(
        script(
            TOKEN, spec, {**PATH, "A": "login", "B": "login", "D": "login"}, evidence, shared=lines
        )
    )
    out = subprocess.run(
        [*shell, str(evidence / "s")], capture_output=True, text=True, env={}, check=True
    ).stdout
    got = dict(e.split("=", 1) for e in out.split("\0") if e)
    assert (got["A"], got["B"], got["C"], got["D"]) == ("shared 'a'", "own", "$HOME", "login")


def test_a_job_is_a_likelier_victim_than_who_keeps_it(shell: list[str], evidence: Path) -> None:
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    ran = Ran(shell, evidence, "cat", "/proc/self/oom_score_adj")
    assert int(ran.out) == max(500, mine) and ran.err == ran.words == ""


def test_where_that_cannot_be_said_it_runs_all_the_same(shell: list[str], evidence: Path) -> None:
    text = script(
        TOKEN, TaskSpec(command=("echo", "ran"), run_dir=str(evidence.parent)), PATH, evidence
    )
    assert text.count("/proc/self/oom_score_adj") == 1
    (evidence / "s").write_text(text.replace("/proc/self/oom_score_adj", "/proc/no/such/place"))
    done = subprocess.run(
        [*shell, str(evidence / "s")], capture_output=True, text=True, env={}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("there", [True, False])
def test_a_text_is_for_bash_and_where_there_is_none_for_sh(evidence: Path, there: bool) -> None:
    """Images may have no bash."""
    spec = TaskSpec(
        command=("/bin/bash", "-c", 'echo "${BASH_VERSION:+bash} it\'s $0 $#"', "name", "x"),
        run_dir=str(evidence.parent),
    )
    text = script(TOKEN, spec, PATH, evidence)
    if not there:
        text = text.replace("/bin/bash", "/nowhere/bash")
    (evidence / "script.sh").write_text(text)
    done = subprocess.run(
        ["dash", str(evidence / "script.sh")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        f"{'bash' if there else ''} it's name 1\n",
        "",
        0,
    )
