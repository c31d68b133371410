"""App runs with a real keeper: for every failure of an app or its code, the user gets a message and
the exit status is right.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jobscribe
from jobscribe.agent.jobs import job_input
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.launch.job_script import identity_variables, job_environment, script
from jobscribe.protocol.launch.keeper_messages import StartOrder
from jobscribe.protocol.launch.message_fields import encode
from jobscribe.protocol.wire.messages import AppInput, TaskSpec

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

#: import paths of this package and of the test apps
ROOTS = (
    str(Path(jobscribe.__file__).parent / ".types"),
    str(Path(__file__).parents[1] / "support"),
)
LOGIN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"}


@pytest.fixture
def who() -> int:
    """Run as the current user only: another user may not be able to read this interpreter."""
    return -1


class Runs:
    """Run apps the same way as the agent."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def launch(
        self,
        app: str,
        model: str = "testReport",
        *,
        limit: float | None = None,
        also: str | None = None,
        boot: str = "",
        task_env: dict[str, str] | None = None,
        token: Token | None = None,
        **data: Any,
    ) -> Token:
        """Launch an app. `boot` is Python code that runs first in the job command's process."""
        keeper, token = self.keeper, token or self.keeper.token()
        run_dir = self.run_dir(token, app, model)
        evidence = keeper.evidence(token)
        asked = AppInput(simulation_type=app, compute_model=model, data=data)
        spec = job_input.with_job_command(
            TaskSpec(command=(), app=asked, run_dir=str(run_dir), env=task_env or {}),
            evidence,
            ROOTS,
        )
        if boot:
            *before, code, roots, path = spec.command
            spec = TaskSpec(
                command=(
                    *before,
                    code.replace("import main;", f"import main; {boot};"),
                    roots,
                    path,
                ),
                run_dir=spec.run_dir,
            )
        names = () if app in ("myapp", "heat") else (also or f"{app}=bad_apps:{app}",)
        login = LOGIN | {"NAP": keeper.nap}
        identity = identity_variables(token, str(run_dir), evidence)
        order = StartOrder(
            name=token.name,
            token=str(token),
            run_dir=str(run_dir),
            command=spec.command,
            env={**job_environment(login), **spec.env, **identity},
            script=(script(token, spec, login, evidence), ""),
            limit=limit,
            grace=2.0,
            input=job_input.input_json(asked, str(run_dir), names),
        )
        keeper.send(**encode(order))
        return token

    def run(self, app: str, model: str = "testReport", **more: Any) -> tuple[ExitInfo, Token]:
        token = self.launch(app, model, **more)
        return self.keeper.end_of(token), token

    def run_dir(self, token: Token, app: str, model: str = "testReport") -> Path:
        return self.keeper.place / "user" / "user1234" / app / f"sim{token.serial}" / model

    def result(self, token: Token, app: str, model: str = "testReport") -> Any:
        return json.loads((self.run_dir(token, app, model) / "out.json").read_text())


@pytest.fixture
def runs(keeper: Keeper) -> Runs:
    return Runs(keeper)


# ---- built-in apps


def test_a_sequential_app_leaves_its_result(runs: Runs, keeper: Keeper) -> None:
    end, token = runs.run(
        "myapp", "heightWeightReport", models={"heightWeightReport": {"breed": "Pug", "years": 1.0}}
    )
    assert (end.code, end.source, end.termination_message, end.survivors_killed) == (
        0,
        "keeper",
        None,
        0,
    )
    result = runs.result(token, "myapp", "heightWeightReport")
    assert [p["label"] for p in result["plots"]] == ["Height [cm]", "Weight [kg]"]
    assert (
        keeper.text(token)
        == f"grew for 52 weeks to {result['plots'][0]['points'][-1]} cm and {result['plots'][1]['points'][-1]} kg\n"
    )
    assert {"in.json", "parameters.py", "out.json"} < {
        p.name for p in runs.run_dir(token, "myapp", "heightWeightReport").iterdir()
    }


def test_a_parallel_app_says_how_far_it_came_and_has_no_result(runs: Runs) -> None:
    end, token = runs.run(
        "heat", "heatAnimation", models={"heatAnimation": {"frames": 7, "size": 20}}
    )
    assert end.code == 0
    assert end.report == {"frameCount": 7, "frameTotal": 7, "percentComplete": 100.0}
    run_dir = runs.run_dir(token, "heat", "heatAnimation")
    assert sorted(p.name for p in (run_dir / "frames").iterdir()) == [
        f"{i:05d}.npy" for i in range(7)
    ]
    assert not (run_dir / "out.json").exists()


def test_the_input_is_for_nobody_elses_eyes(runs: Runs, keeper: Keeper) -> None:
    _, token = runs.run("good", password="in the data")
    path = keeper.evidence(token) / "input.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["data"] == {"password": "in the data"}


def test_an_input_that_is_no_text_fails_the_start(keeper: Keeper) -> None:
    token = keeper.token()
    keeper.send(**{**keeper.order(token, "true"), "input": {"a": 1}})
    assert keeper.end_of(token).source == "start"


def test_the_app_gets_its_data_its_model_and_its_library(runs: Runs, keeper: Keeper) -> None:
    lib = keeper.place / "user" / "user1234" / "library" / "lib"
    lib.mkdir(parents=True)
    (lib / "mine.txt").write_text("uploaded")
    end, token = runs.run("library", models={"a": [1, 2.5, "é"]})
    assert end.ok
    assert runs.result(token, "library") == {
        "lib": str(lib),
        "file": "uploaded",
        "model": "testReport",
        "data": {"models": {"a": [1, 2.5, "é"]}},
    }


# ---- the run directory and the code's inputs


def test_nothing_of_an_earlier_run_is_left_and_no_link_is_followed(
    runs: Runs, keeper: Keeper
) -> None:
    outside = keeper.place / "outside"
    outside.mkdir()
    (outside / "kept").write_text("precious")
    first = keeper.token()
    run_dir = runs.run_dir(first, "good")
    (run_dir / "old" / "deep").mkdir(parents=True)
    for name in ("out.json", ".hidden", "old/deep/file"):
        (run_dir / name).write_text("of an earlier run")
    for name in ("link", "old/link"):
        (run_dir / name).symlink_to(outside)
    token = runs.launch("good", token=first, sh="ls -A")
    assert keeper.end_of(token).ok
    assert keeper.text(token) == ".jobscribe\n"
    assert {p.name for p in run_dir.iterdir()} == {".jobscribe", "out.json"}
    assert (outside / "kept").read_text() == "precious"


def test_the_code_gets_a_clean_environment_its_lock_and_the_contract(
    runs: Runs, keeper: Keeper
) -> None:
    end, token = runs.run(
        "good",
        sh="env -0; exec ls -l /proc/self/fd >&2",
        env={"FOO": "from the app", "JOBSCRIBE_TOKEN": "forged"},
    )
    assert end.ok
    got = dict(e.split("=", 1) for e in keeper.text(token).split("\0") if e)
    assert (got["FOO"], got["JOBSCRIBE_TOKEN"]) == ("from the app", str(token))
    assert got["JOBSCRIBE_REPORT"] == str(keeper.evidence(token) / "report.jsonl")
    assert set(got) - {
        "PATH",
        "HOME",
        "NAP",
        "FOO",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "PYTHONUNBUFFERED",
        "PYTHONFAULTHANDLER",
    } == {n for n in got if n.startswith("JOBSCRIBE_")}
    open_files = {
        line.split()[8]: line.split()[-1]
        for line in keeper.text(token, "stderr.log").splitlines()
        if "->" in line
    }
    assert open_files["9"] == str(keeper.evidence(token) / "stdout.log")
    assert {n for n in open_files if n not in ("0", "1", "2", "9")} <= {
        "3"
    }  # 3 is the folder that ls reads


def test_the_codes_output_is_the_jobs(runs: Runs, keeper: Keeper) -> None:
    end, token = runs.run("good", sh="echo out; echo err >&2; cat; exit 3")
    assert (end.code, end.termination_message, end.last_lines) == (3, None, "err")
    assert (keeper.text(token), keeper.text(token, "stderr.log")) == ("out\n", "err\n")


def test_by_hand_the_script_does_the_same(runs: Runs, keeper: Keeper) -> None:
    end, token = runs.run("good", sh="echo $((6 * 7)) | tee file")
    assert end.ok
    (runs.run_dir(token, "good") / "out.json").unlink()
    done = subprocess.run(
        [keeper.evidence(token) / "script.sh"], capture_output=True, text=True, env={}, check=False
    )
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert runs.result(token, "good") == {"ok": True}


# ---- apps that fail


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("prepare_raises", "prepare_raises failed in prepare: ValueError: no such thing"),
        ("prepare_says_no", "The plate is too small for 3 hot spots."),
        ("prepare_says_nothing", "prepare_says_nothing failed in prepare without a message"),
        ("prepare_exits", "prepare_exits failed in prepare: it called exit(0)"),
        (
            "prepare_exits_silently",
            "prepare_exits_silently failed in prepare: its process ended with exit code 0",
        ),
        (
            "prepare_returns_text",
            "prepare_returns_text failed in prepare: the returned value is invalid: it is of type str, not Prepared",
        ),
        (
            "prepare_returns_nothing",
            "prepare_returns_nothing failed in prepare: the returned value is invalid: "
            "command is not a tuple of strings that starts with the program",
        ),
        ("result_raises", "result_raises failed in result: ZeroDivisionError: division by zero"),
        ("result_says_no", "There is no curve in what came out."),
        (
            "result_is_nan",
            "result_is_nan failed in result: the returned value cannot be sent: plots[0].points[2] is NaN",
        ),
        (
            "result_has_a_set",
            "result_has_a_set failed in result: the returned value cannot be sent: x.y is a set",
        ),
        (
            "result_is_a_list",
            "result_is_a_list failed in result: the returned value is invalid: "
            "a result must be a dict, not of type list",
        ),
        ("no_app", "the app no_app (bad_apps:no_app) cannot be used: it is 'dict', not an App"),
        (
            "misnamed",
            "the app misnamed (bad_apps:misnamed) cannot be used: its name is 'somebody_else'",
        ),
    ],
)
def test_an_app_that_fails_is_an_error_with_its_own_sentence(
    runs: Runs, app: str, said: str
) -> None:
    end, token = runs.run(app)
    assert (end.code, end.termination_message) == (1, said)
    assert not (runs.run_dir(token, app) / "out.json").exists()


def test_a_trace_goes_to_the_log_and_not_to_the_user(runs: Runs, keeper: Keeper) -> None:
    end, token = runs.run("prepare_raises")
    assert "bad_apps.py" in keeper.text(token, "stderr.log")
    assert "\n" not in str(end.termination_message) and ".py" not in str(end.termination_message)


def test_a_run_that_was_digested_by_another_version_of_its_app_is_refused_by_name(
    runs: Runs,
) -> None:
    ended, token = runs.run(
        "myapp", "heightWeightReport", task_env={"JOBSCRIBE_APP_VERSION": "0.9"}
    )
    assert ended.code == 1 and "the front end has myapp 0.9, but " in (
        ended.termination_message or ""
    )
    assert "has myapp 1, so nothing was run" in (
        ended.termination_message or ""
    ) and "jobscribe server" in (ended.termination_message or "")
    assert not (runs.run_dir(token, "myapp", "heightWeightReport") / "out.json").exists()
    assert (
        runs.run("myapp", "heightWeightReport", task_env={"JOBSCRIBE_APP_VERSION": "1"})[0].code
        == 0
    )


@pytest.mark.parametrize(
    ("also", "said"),
    [
        (
            "ghost=no_such_module:app",
            "the app ghost (no_such_module:app) cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "ghost=bad_apps:nothing",
            "the app ghost (bad_apps:nothing) cannot be imported: AttributeError: module 'bad_apps' has no attribute 'nothing'",
        ),
        ("other=bad_apps:good", "there is no app 'ghost'; the apps are: heat, myapp, other"),
    ],
)
def test_an_app_that_cannot_be_had_is_said(runs: Runs, also: str, said: str) -> None:
    assert runs.run("ghost", also=also)[0].termination_message == said


def test_a_model_that_the_app_does_not_have_is_said(runs: Runs) -> None:
    end, _ = runs.run("good", "otherReport")
    assert (end.code, end.termination_message) == (
        1,
        "good has no compute model 'otherReport'; it has: testReport",
    )


@pytest.mark.parametrize("app", ["prepare_dies", "prepare_dies_leaving_a_child", "result_dies"])
def test_an_app_that_ends_by_a_signal_takes_nothing_with_it_but_the_run(
    runs: Runs, app: str
) -> None:
    end, _ = runs.run(app)
    where = "result" if "result" in app else "prepare"
    assert (end.signal, end.core_dumped) == (signal.SIGSEGV, False)
    assert (
        end.termination_message
        == f"{app} failed in {where}: its process was killed by signal 11 (SIGSEGV)"
    )


def test_an_app_that_closes_what_it_does_not_own_is_ended(runs: Runs) -> None:
    end, _ = runs.run("prepare_closes_everything")
    assert end.signal == signal.SIGKILL
    assert "failed in prepare" in str(end.termination_message)


@pytest.mark.parametrize("app", ["prepare_hangs", "result_hangs"])
def test_an_app_that_hangs_is_ended_by_the_time_limit(runs: Runs, app: str) -> None:
    end, token = runs.run(app, limit=1.0)
    assert end.stop_reason == "timeLimit"
    assert not (runs.run_dir(token, app) / "out.json").exists()


def test_what_an_app_prints_is_output_and_nothing_else(runs: Runs, keeper: Keeper) -> None:
    end, token = runs.run("prepare_shouts", sh="echo code ran")
    assert end.ok
    out = (keeper.evidence(token) / "stdout.log").read_bytes()
    assert out.count(b"/bin/false") == 1000 and out.endswith(b"code ran\n")


# ---- failing codes


def test_a_code_that_ends_by_a_signal_ends_the_run_by_it(runs: Runs) -> None:
    end, _ = runs.run("good", sh="kill -SEGV $$")
    assert (end.signal, end.core_dumped) == (signal.SIGSEGV, False)
    assert end.termination_message == "the program of good was killed by signal 11 (SIGSEGV)"
    assert runs.run("good", sh="kill -KILL $$")[0].signal == signal.SIGKILL


def test_the_last_word_is_the_codes_if_it_has_one(runs: Runs) -> None:
    said = "printf 'out of hot spots' >$JOBSCRIBE_TERMINATION_MESSAGE; "
    for how, code, number in (("exit 4", 4, None), ("kill -SEGV $$", None, signal.SIGSEGV)):
        end, _ = runs.run("good", sh=said + how)
        assert (end.code, end.signal, end.termination_message) == (code, number, "out of hot spots")


def test_a_program_that_is_not_there_is_said(runs: Runs) -> None:
    end, _ = runs.run("good", argv=["/no/such/program", "x"])
    assert (end.code, end.termination_message) == (
        1,
        "the program of good, /no/such/program, cannot be run: No such file or directory",
    )


def test_the_app_explains_the_end_of_its_code(runs: Runs) -> None:
    end, _ = runs.run("outcome_explains", sh="exit 7")
    assert (end.code, end.termination_message) == (7, "It ended with 7, as expected.")
    end, _ = runs.run("outcome_explains", sh="kill -TERM $$")
    assert (end.signal, end.termination_message) == (
        signal.SIGTERM,
        "It ended with -15, as expected.",
    )
    end, _ = runs.run("outcome_explains", sh="echo '{\"frameCount\": 3}' >>$JOBSCRIBE_REPORT")
    assert (end.code, end.termination_message) == (0, None)
    assert end.report == {"frameCount": 3, "alert": "It ended with 0, as expected."}


def test_an_explanation_that_fails_changes_nothing_about_the_end(runs: Runs) -> None:
    assert runs.run("outcome_raises", sh="exit 7")[0].code == 7
    end, token = runs.run("outcome_raises")
    assert end.ok and runs.result(token, "outcome_raises") == {"ok": True}
    assert end.report == {"alert": "outcome_raises failed in outcome: RuntimeError: at the end"}


def test_a_flood_of_output_is_cut_and_the_run_completes(new_keeper: Any) -> None:
    keeper = new_keeper(outputCap={"head": 65536, "tail": 65536})
    end, token = Runs(keeper).run("good", sh="head -c 50000000 /dev/zero; echo; echo the end")
    assert end.ok and end.stdout_bytes == 50000009
    assert end.dropped_bytes > 49_000_000
    assert (keeper.evidence(token) / "stdout.log").stat().st_blocks * 512 < 1_000_000


# ---- progress


def test_progress_is_reported_while_it_runs(runs: Runs, keeper: Keeper) -> None:
    token = runs.launch("counting", sh="touch part-1; sleep $NAP & wait; touch part-2 part-3")
    reports = keeper.evidence(token) / "report.jsonl"
    until(lambda: reports.exists() and '{"frameCount":1}' in reports.read_text())
    keeper.wake()
    end = keeper.end_of(token)
    assert (end.code, end.report) == (0, {"frameCount": 3})
    assert [json.loads(line)["frameCount"] for line in reports.read_text().splitlines()][-2:] == [
        1,
        3,
    ]


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("progress_raises", "progress_raises failed in progress: KeyError: 'step'"),
        (
            "progress_dies",
            "progress_dies failed in progress: its process was killed by signal 9 (SIGKILL)",
        ),
        (
            "progress_is_long",
            "progress_is_long failed in progress: the returned value is invalid: a report has at most 16384 bytes, "
            "not 20011",
        ),
        (
            "progress_has_many_keys",
            "progress_has_many_keys failed in progress: the returned value is invalid: "
            "a report may have at most 64 keys, not 100",
        ),
        (
            "progress_is_a_list",
            "progress_is_a_list failed in progress: the returned value is invalid: a report must be an object",
        ),
    ],
)
def test_a_computation_is_not_lost_because_its_progress_cannot_be_told(
    runs: Runs, keeper: Keeper, app: str, said: str
) -> None:
    end, token = runs.run(app, sh="echo done")
    assert (end.code, end.report, end.termination_message) == (0, {"alert": said}, said)
    assert keeper.text(token) == "done\n"


def test_an_app_that_hangs_in_progress_is_not_waited_for(runs: Runs) -> None:
    boot = "import jobscribe.agent.jobs.job_command as j; j.PROGRESS_PATIENCE_SECS = 0.3"
    end, _ = runs.run("progress_hangs", boot=boot, sh="echo done")
    assert end.code == 0
    assert end.report == {"alert": "progress_hangs failed in progress: no answer within 0.3 s"}


# ---- stops


def test_a_stop_ends_app_and_code_at_once(runs: Runs, keeper: Keeper) -> None:
    token = runs.launch("counting", sh="sleep $NAP & sleep $NAP; touch never")
    until(lambda: len(keeper.sleepers()) == 2)
    keeper.stop(token, grace=10.0)
    end = keeper.end_of(token)
    assert (end.stop_reason, end.signal, end.survivors_killed) == ("cancel", signal.SIGTERM, 0)
    assert not (runs.run_dir(token, "counting") / "never").exists()


def test_a_code_that_cleans_up_gets_its_time_and_no_result_is_read(
    runs: Runs, keeper: Keeper
) -> None:
    token = runs.launch("result_dies", sh="trap 'echo cleaned up; exit 0' TERM; sleep $NAP & wait")
    until(keeper.naps)
    keeper.stop(token, grace=10.0)
    end = keeper.end_of(token)
    assert (end.stop_reason, end.signal, end.termination_message) == (
        "cancel",
        signal.SIGTERM,
        None,
    )
    assert keeper.text(token) == "cleaned up\n"


def test_the_warning_of_a_scheduler_is_for_the_code(runs: Runs, keeper: Keeper) -> None:
    """SIGUSR1 goes to the whole process group. The job command and the app ignore it; the code
    handles it.
    """
    token = runs.launch("outcome_explains", sh="trap 'echo saved; exit 5' USR1; sleep $NAP & wait")
    (nap, *_) = until(keeper.naps)
    os.killpg(os.getpgid(nap.pid), signal.SIGUSR1)
    end = keeper.end_of(token)
    assert (end.signal, end.code) == (None, 5) and keeper.text(token) == "saved\n"


def test_the_codes_own_exit_is_told_also_when_it_was_stopped(runs: Runs, keeper: Keeper) -> None:
    token = runs.launch("outcome_explains", sh="trap 'sleep 0.3; exit 5' TERM; sleep $NAP & wait")
    until(keeper.naps)
    keeper.stop(token, grace=10.0)
    end = keeper.end_of(token)
    assert (end.stop_reason, end.code, end.termination_message) == ("cancel", 5, None)


def test_a_code_that_does_not_want_to_end_is_killed(runs: Runs, keeper: Keeper) -> None:
    token = runs.launch("good", sh="trap '' TERM; sleep $NAP; sleep $NAP")
    until(keeper.naps)
    keeper.stop(token, grace=0.5)
    end = keeper.end_of(token)
    assert (end.stop_reason, end.signal) == ("cancel", signal.SIGKILL)


# ---- reports of jobs


@pytest.mark.parametrize(
    ("shell", "report"),
    [
        ("echo '{\"a\": 1}' >>$JOBSCRIBE_REPORT; printf '{\"a\": 2' >>$JOBSCRIBE_REPORT", {"a": 1}),
        (
            "echo '{\"a\": 1}' >>$JOBSCRIBE_REPORT; echo '[[[[' >>$JOBSCRIBE_REPORT; echo NaN >>$JOBSCRIBE_REPORT",
            {"a": 1},
        ),
        (
            'echo \'{"a": 1e999}\' >>$JOBSCRIBE_REPORT; echo \'{"a": "\\ud800"}\' >>$JOBSCRIBE_REPORT',
            None,
        ),
        (
            "echo '{\"a\": 1}' >>$JOBSCRIBE_REPORT; head -c 100000 /dev/zero >>$JOBSCRIBE_REPORT",
            None,
        ),
        ("ln -s /etc/passwd $JOBSCRIBE_REPORT", None),
        ("mkfifo $JOBSCRIBE_REPORT", None),
        ("true", None),
    ],
)
def test_the_last_report_of_any_job_is_kept_if_it_is_one(
    keeper: Keeper, shell: str, report: object
) -> None:
    end = keeper.run(shell)
    assert (end.code, end.report) == (0, report)


def test_a_report_is_known_of_a_job_whose_keeper_was_killed(new_keeper: Any) -> None:
    keeper = new_keeper()
    token = keeper.started("echo '{\"frameCount\": 5}' >>$JOBSCRIBE_REPORT; sleep NAP")
    until(lambda: (keeper.evidence(token) / "report.jsonl").exists())
    keeper.kill()
    following = new_keeper()
    following.wake()
    assert following.end_of(token).report == {"frameCount": 5}


def test_each_run_of_an_app_loads_no_message_and_no_openssl() -> None:
    """Imports are most of what a short run costs."""
    code = "import sys, jobscribe.agent.jobs.job_command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    heavy = {"asyncio", "hashlib", "shutil", "tornado", "jobscribe.protocol.wire.messages"}
    assert done.returncode == 0 and heavy & set(done.stdout.split()) == set(), done
