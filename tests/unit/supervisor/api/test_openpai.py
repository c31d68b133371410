"""Words and texts of OpenPAI's REST interface."""

import json

import msgspec
import pytest
from event_strategies import JID, life
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.db.events.job_fold import fold
from jobscribe.protocol.errors import CODES, Refusal
from jobscribe.schema.openpai.draft import Options
from jobscribe.supervisor.api.openpai import documents, jobs, words


@pytest.mark.parametrize(
    "text",
    [
        '{"protocolVersion": 2, "secrets": {"pw": "c4nary-1"}, "name": "x"}',
        "protocolVersion: 2\nsecrets:\n  pw: {file: c4nary-1}\n",
        "prerequisites:\n- {name: i, auth: {username: u, password: c4nary-1}}\n",
        "parameters: {apiToken: c4nary-1}\n",
    ],
)
def test_a_kept_configuration_has_no_secret(text: str) -> None:
    kept = jobs._kept(text.encode())
    assert isinstance(kept, str) and "c4nary" not in kept and "******" in kept


def test_a_configuration_without_secrets_is_kept_as_it_is() -> None:
    text = "# ours\nprotocolVersion: 2\nname:   x\n"
    assert jobs._kept(text.encode()) == text


@given(st.sampled_from(sorted(CODES)))
@settings(max_examples=len(CODES))
def test_each_refusal_is_an_error_with_code_and_message(code: str) -> None:
    body = words.error(Refusal(code, "it is so"))
    assert body.keys() == {"code", "message"}
    assert body["code"].endswith("Error") and body["message"].startswith("it is so")


def test_a_job_that_ended_has_state_and_exit() -> None:
    job = fold(JID, life(1))
    assert job.run is not None
    row = documents.row2(job, job.run)
    assert (row["name"], row["state"], row["appExitCode"]) == (JID, "SUCCEEDED", 0)
    detail = documents.detail2(job, job.run, 0, "{role}/{index}/{attempt}")
    assert detail is not None
    assert detail["jobStatus"]["appExitType"] == "USER_SUCCESS"
    (tasks,) = detail["taskRoles"].values()
    assert tasks["taskStatuses"][0]["containerLog"] == "main/0/0"
    assert documents.detail2(job, job.run, 1, "") is None


def test_running_tasks_are_those_that_accept_ssh() -> None:
    events = life(1)
    running, over = fold(JID, events[:3]), fold(JID, events)
    (task,) = running.live_tasks()
    attempt = msgspec.structs.replace(
        running.run.attempts[-1],  # type: ignore[union-attr]
        tasks=(msgspec.structs.replace(task, address="@10.208.0.2", ports={"ssh": (22001,)}),),
    )
    run = msgspec.structs.replace(running.run, attempts=(attempt,))
    said = documents.ssh(running, run)
    assert said["containers"] == [
        {"id": task.token.name, "sshIp": "10.208.0.2", "sshPort": "22001"}
    ]
    assert said["keyPair"].keys() == {
        "folderPath",
        "publicKeyFileName",
        "privateKeyFileName",
        "privateKeyDirectDownloadLink",
    }
    assert over.run is not None and documents.ssh_tasks(over.run) == []


def test_the_password_of_an_image_goes_beside_the_description() -> None:
    text = b"""
protocolVersion: 2
name: x
secrets: {pw: c4nary-1}
prerequisites:
  - name: i
    type: dockerimage
    uri: reg:5000/x
    auth: {username: ann, password: "<% $secrets.pw %>", registryuri: "https://reg:5000/v2/"}
taskRoles:
  m: {dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 100}, commands: [x]}
"""
    made = jobs._converted(text, "PaiUser1", Options("PaiUser1", driver="docker"))
    (login,) = jobs._credentials(made).values()
    assert (login.registry, login.username, login.password) == ("reg:5000", "ann", "c4nary-1")
    assert "c4nary" not in repr(made.data) + str(jobs._kept(text)) + repr(login)


def test_a_file_with_credentials_is_refused_here() -> None:
    role = {"name": "m", "command": "x"}
    text = json.dumps({"jobName": "x", "image": "i", "authFile": "/a", "taskRoles": [role]})
    with pytest.raises(Refusal, match="read where a job is submitted"):
        jobs._converted(text.encode(), "PaiUser1", Options("PaiUser1", driver="docker"))
