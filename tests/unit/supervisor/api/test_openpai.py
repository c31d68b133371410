"""Words and texts of OpenPAI's REST interface."""

import pytest
from event_strategies import JID, life
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.db.events.job_fold import fold
from jobscribe.protocol.errors import CODES, Refusal
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
