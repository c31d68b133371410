"""Path translation in the agent: whole path components are translated, partial names are not."""

import pytest

from jobscribe.agent.session.path_mapping import Paths
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import (
    Call,
    ListFiles,
    ReadFile,
    RunTasks,
    Shared,
    TaskRun,
    TaskSpec,
)

PATHS = Paths([["/srv/user", "/scratch/js/user"], ["/srv/user/shared", "/projects/shared"]])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/user/a/b", "/scratch/js/user/a/b"),
        ("/srv/user", "/scratch/js/user"),
        ("/srv/users/a", "/srv/users/a"),
        ("/srv/user/shared/x", "/projects/shared/x"),
        ("/more/srv/user/a", "/more/srv/user/a"),
        ("/srv/user-old/a", "/srv/user-old/a"),
    ],
)
def test_a_path(path: str, expected: str) -> None:
    assert PATHS.path(path) == expected
    assert PATHS.text(f"--in={path}:{path}") == f"--in={expected}:{expected}"


def test_what_messages_carry() -> None:
    spec = TaskSpec(
        command=("/srv/user/tool",), run_dir="/srv/user/a", env={"P": "/bin:/srv/user/a/lib"}
    )
    token = Token("user1234-sim12345-command", 1, 1, "main", 0)
    gang = RunTasks(
        op_id="o" * 32,
        shared=Shared(env={"Q": "/srv/user"}, job="{}"),
        tasks=(TaskRun(op_id="p" * 32, token=token, spec=spec),),
    )
    said = PATHS.message(gang)
    assert (said.tasks[0].spec.run_dir, said.tasks[0].spec.env, said.shared.env) == (
        "/scratch/js/user/a",
        {"P": "/bin:/scratch/js/user/a/lib"},
        {"Q": "/scratch/js/user"},
    )
    call = Call(
        op_id="o" * 32,
        job_cmd="analysis_job",
        simulation_type="heat",
        compute_model="x",
        run_dir="/srv/user/a",
        lib_dir="/srv/user/l",
        deadline_secs=1.0,
        reply_limit=1,
    )
    assert (PATHS.message(call).run_dir, PATHS.message(call).lib_dir) == (
        "/scratch/js/user/a",
        "/scratch/js/user/l",
    )
    read = ReadFile(op_id="o" * 32, run_dir="/srv/user/a", name="x", offset=0, limit=1)
    listing = ListFiles(op_id="o" * 32, run_dir="/srv/user/a", limit=1)
    assert PATHS.message(read).run_dir == PATHS.message(listing).run_dir == "/scratch/js/user/a"
    assert Paths([["/a", "/a"]]).same and not PATHS.same and Paths([]).message(call) is call
