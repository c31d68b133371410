"""A client of OpenPAI, written from its REST documentation only, works with a real supervisor."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from loop_lag import check_lag
from supervisor_process import PYTHON_PATH, SupervisorProcess, ended, until

USER, OTHER = "PaiUser1", "PaiUser2"
JOB = """
// as in the guides
{
  "jobName": "count-to-three",
  "image": "python:3.11",
  "taskRoles": [
    {
      "name": "worker",
      "taskNumber": 2,
      "cpuNumber": 1,
      "memoryMB": 128,
      "gpuNumber": 0,
      "command": "echo $PAI_JOB_NAME $PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX; for i in 1 2 3; do echo $i; done",
    },
  ],
}
"""
LONG = JOB.replace("count-to-three", "endless").replace(
    "for i in 1 2 3; do echo $i; done", "sleep 600"
)
V2 = """
protocolVersion: 2
name: second
type: job
prerequisites:
  - {name: image, type: dockerimage, uri: "python:3.11"}
parameters: {code: 7}
taskRoles:
  main:
    instances: 1
    dockerImage: image
    resourcePerInstance: {cpu: 1, memoryMB: 128, gpu: 0}
    commands: ["echo failing", "exit <% $parameters.code %>"]
defaults: {virtualCluster: default}
"""


#: Stands for NVIDIA's library on a machine with one GPU.
NVML = """
class NVMLError(Exception): pass
def nvmlInit(): pass
nvmlShutdown = nvmlInit
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(n): return n
def nvmlDeviceGetUUID(handle): return "GPU-aaaa"
def nvmlDeviceGetName(handle): return "Tesla K80"
"""


class PaiClient:
    """One user of OpenPAI."""

    def __init__(self, site: SupervisorProcess, user: str) -> None:
        self.user, self._url = user, site.url
        made = site.post("token-create", uid=user, name="pai", scopes=["read", "control"])
        self._token = made["secret"]

    def ask(
        self, method: str, path: str, body: str | None = None, token: str | None = ""
    ) -> tuple[int, Any]:
        """Return the status and the body. token: "" for the user's own; None for none."""
        request = urllib.request.Request(
            self._url + path, None if body is None else body.encode(), method=method
        )
        if token is not None:
            request.add_header("Authorization", f"Bearer {token or self._token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                code, text = e.code, e.read().decode()
        return code, json.loads(text) if text[:1] in "[{" else text

    def sign_in(self) -> dict[str, Any]:
        code, said = self.ask("POST", "/api/v1/token", "{}")
        assert code == 200
        self._token = said["token"]
        return dict(said)

    def job(self, name: str, more: str = "") -> tuple[int, Any]:
        return self.ask("GET", f"/api/v1/user/{self.user}/jobs/{name}{more}")

    def state(self, name: str) -> str:
        code, said = self.job(name)
        assert code == 200, said
        return str(said["jobStatus"]["state"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorProcess]:
    folder = tmp_path_factory.mktemp("site")
    queues = folder / "queues.yml"
    queues.write_text(f"queues: {{closed: {{users: [{OTHER}]}}}}\n")
    (folder / "pynvml.py").write_text(NVML)
    settings = ("resources.local_cpu=8", "resources.local_gpus=auto", f"queues.file={queues}")
    with ended(check_lag) as sites:
        env = {"PYTHONPATH": f"{folder}{os.pathsep}{PYTHON_PATH}"}
        sites.append(SupervisorProcess(settings, env=env))
        sites[0].start()
        yield sites[0]


@pytest.fixture(scope="module")
def pai(site: SupervisorProcess) -> PaiClient:
    client = PaiClient(site, USER)
    assert client.sign_in() == {"token": client._token, "user": USER, "admin": False}
    return client


def test_a_job_is_submitted_polled_read_stopped_started_and_deleted(
    site: SupervisorProcess, pai: PaiClient
) -> None:
    jobs, bare = f"/api/v1/user/{USER}/jobs", "?noImage=true"
    assert pai.ask("GET", jobs) == (200, [])
    # no part of a configuration is dropped unless the user says so, and the answer names it
    before = _head(site)
    for query in ("", "?noImage=false"):
        code, said = pai.ask("POST", jobs + query, JOB)
        assert (code, said["code"]) == (400, "InvalidParametersError"), said
        assert '"python:3.11", and this site runs tasks without containers' in said["message"]
        assert "?noImage=true" in said["message"]
    assert pai.ask("POST", f"{jobs}?noImage=yes", JOB)[0] == 400
    assert _head(site) == before
    code, said = pai.ask("POST", jobs + bare, JOB)
    assert (code, said["message"]) == (202, "update job count-to-three successfully"), said
    (warning,) = said["warnings"]
    assert warning.startswith('image: the commands run without "python:3.11"')
    until(lambda: pai.state("count-to-three") == "SUCCEEDED", "it succeeds")

    ((row,)) = pai.ask("GET", jobs)[1]
    assert (
        row.items()
        >= {
            "name": "count-to-three",
            "username": USER,
            "state": "SUCCEEDED",
            "subState": "FRAMEWORK_COMPLETED",
            "executionType": "START",
            "retries": 0,
            "appExitCode": 0,
            "virtualCluster": "default",
        }.items()
    )
    assert row["createdTime"] <= row["completedTime"]
    detail = pai.job("count-to-three")[1]
    assert detail["jobStatus"]["appExitType"] == "USER_SUCCESS"
    tasks = detail["taskRoles"]["worker"]["taskStatuses"]
    assert [(t["taskIndex"], t["taskState"], t["containerExitCode"]) for t in tasks] == [
        (0, "SUCCEEDED", 0),
        (1, "SUCCEEDED", 0),
    ]
    log = urllib.parse.urlparse(tasks[1]["containerLog"])
    assert pai.ask("GET", log.path)[1] == "count-to-three 1\n1\n2\n3\n"
    listed = pai.ask("GET", log.path.removesuffix("/stdout") + "?tail-mode=true")[1]
    assert [place["name"] for place in listed["locations"]] == ["stdout", "stderr"]
    assert pai.job("count-to-three", "/config") == (200, JOB)
    code, said = pai.job("count-to-three", "/ssh")
    assert (code, said["code"]) == (404, "NoJobSshInfoError") and "job shell" in said["message"]

    # the name is taken, also for a PUT
    for method, path in (("POST", jobs), ("PUT", f"{jobs}/count-to-three")):
        code, said = pai.ask(method, path + bare, JOB)
        assert (code, said["code"]) == (409, "ConflictJobError"), said

    assert pai.ask("PUT", f"{jobs}/endless{bare}", LONG)[0] == 202
    until(lambda: pai.state("endless") == "RUNNING", "it runs")
    switch = f"{jobs}/endless/executionType"
    assert pai.ask("PUT", switch, '{"value": "STOP"}')[0] == 202
    until(lambda: pai.state("endless") == "STOPPED", "it is stopped")
    assert (
        pai.job("endless")[1]["jobStatus"].items()
        >= {
            "executionType": "STOP",
            "appExitType": "USER_STOP",
        }.items()
    )
    assert pai.ask("PUT", switch, '{"value": "START"}')[0] == 202
    until(lambda: pai.state("endless") == "RUNNING", "it runs again")
    assert pai.ask("DELETE", f"{jobs}/endless")[0] == 202
    assert pai.job("endless")[1]["code"] == "NoJobError"
    assert [r["name"] for r in pai.ask("GET", "/api/v1/jobs")[1]] == ["count-to-three"]
    # the name is free again
    assert pai.ask("POST", jobs + bare, LONG)[0] == 202
    assert pai.ask("DELETE", f"{jobs}/endless")[0] == 202


def test_version_2_tells_of_failures_and_filters_lists(pai: PaiClient) -> None:
    code, said = pai.ask("POST", "/api/v2/jobs", V2.replace("instances: 1", "instances: 0"))
    assert (code, said["code"]) == (400, "InvalidProtocolError"), said
    assert "taskRoles.main.instances" in said["message"]
    code, said = pai.ask("POST", "/api/v2/jobs?noImage=true", V2)
    assert code == 202 and said["message"] == f"Update job second for user {USER} successfully."
    job = f"/api/v2/jobs/{USER}~second"
    until(lambda: pai.ask("GET", job)[1]["jobStatus"]["state"] == "FAILED", "it fails")
    status = pai.ask("GET", job)[1]["jobStatus"]
    assert (status["appExitCode"], status["attemptId"]) == (7, 0)
    assert status["appExitType"] == "UNKNOWN_FAILURE"
    assert status["appExitTriggerTaskRoleName"] == "main"
    first = pai.ask("GET", f"{job}/attempts/0")[1]
    assert first["taskRoles"]["main"]["taskStatuses"][0]["containerExitCode"] == 7
    assert pai.ask("GET", f"{job}/attempts/1")[0] == 404
    task = f"{job}/attempts/0/taskRoles/main/taskIndex/0/attempts"
    assert pai.ask("GET", task)[1]["data"][0]["taskState"] == "FAILED"
    assert pai.ask("GET", f"{task}/0/logs/stdout")[1] == "failing\n"
    assert "name: second" in pai.ask("GET", f"{job}/config")[1]
    events = pai.ask("GET", f"{job}/events")[1]
    assert events["totalCount"] == len(events["data"]) > 2
    assert events["data"][-1]["reason"] == "RunRequested"
    found = pai.ask("GET", "/api/v2/jobs?state=FAILED,STOPPED&withTotalCount=true&limit=1")[1]
    assert (found["totalCount"], [r["name"] for r in found["data"]]) == (1, ["second"])
    assert pai.ask("GET", "/api/v2/jobs?keyword=nowhere")[1] == []
    _check_tags(pai, job)
    assert pai.ask("GET", "/api/v2/jobs?order=jobName,ASC&limit=50001")[0] == 400


def _check_tags(pai: PaiClient, job: str) -> None:
    def change(method: str, tag: str) -> tuple[int, Any]:
        return pai.ask(method, f"{job}/tag", json.dumps({"value": tag}))

    def listed(query: str) -> list[str]:
        return sorted(row["name"] for row in pai.ask("GET", f"/api/v2/jobs?{query}")[1])

    everything = listed("")
    for tag in ("best", "lr=0.01", "draft", "draft"):
        code, said = change("PUT", tag)
        assert (code, said["status"]) == (200, 200), said
    assert change("DELETE", "draft")[0] == 200
    assert pai.ask("GET", job)[1]["jobStatus"]["tags"] == ["best", "lr=0.01"]
    assert listed("tagsContain=other,best") == ["second"]
    assert listed("tagsContain=draft") == []
    assert listed("tagsNotContain=draft") == everything
    assert listed("tagsNotContain=best,other") == [n for n in everything if n != "second"]
    code, said = change("DELETE", "draft")
    assert (code, said["code"]) == (404, "NoTagError") and "best, lr=0.01" in said["message"]
    for bad in ("a,b", "", "x" * 65, "a b"):
        code, said = change("PUT", bad)
        assert (code, said["code"]) == (400, "InvalidParametersError"), said
    assert pai.ask("PUT", f"/api/v2/jobs/{pai.user}~nothing/tag", '{"value": "a"}')[0] == 404
    events = pai.ask("GET", f"{job}/events")[1]["data"]
    assert next(e["message"] for e in events if e["reason"] == "TagsChanged").endswith(
        f"tags changed by {pai.user}: removed draft"
    )
    # the same tags by the interface of jobscribe
    code, page = pai.ask("POST", "/api/job-list", json.dumps({"tags": ["lr=0.01", "x"]}))
    assert code == 200 and [row["tags"] for row in page["jobs"]] == [["best", "lr=0.01"]]
    assert pai.ask("POST", "/api/job-list", json.dumps({"tags": ["draft"]}))[1]["jobs"] == []


def _head(site: SupervisorProcess) -> int:
    head: int = site.ask("GET", "/readyz").json()["head"]
    return head


@pytest.mark.parametrize(
    "method, path, body, code, error",
    [
        ("POST", f"user/{USER}/jobs", "{", 400, "InvalidParametersError"),
        ("POST", f"user/{USER}/jobs", '{"a": 1}', 400, "InvalidParametersError"),
        ("POST", f"user/{USER}/jobs", JOB.replace("2,", '"x",'), 400, "InvalidParametersError"),
        (
            "POST",
            f"user/{USER}/jobs",
            JOB.replace('"image"', '"virtualCluster": "mars", "image"'),
            404,
            "NoVirtualClusterError",
        ),
        ("PUT", f"user/{USER}/jobs/another", JOB, 400, "InvalidParametersError"),
        (
            "POST",
            f"user/{USER}/jobs",
            JOB.replace('"image"', '"virtualCluster": "closed", "image"'),
            403,
            "ForbiddenUserError",
        ),
        ("POST", f"user/{OTHER}/jobs", JOB, 403, "ForbiddenUserError"),
        ("GET", f"user/{OTHER}/jobs", None, 403, "ForbiddenUserError"),
        ("GET", f"user/{OTHER}/jobs/x", None, 403, "ForbiddenUserError"),
        ("GET", f"jobs?username={OTHER}", None, 403, "ForbiddenUserError"),
        ("GET", f"user/{USER}/jobs/x", None, 404, "NoJobError"),
        ("DELETE", f"user/{USER}/jobs/x", None, 404, "NoJobError"),
        (
            "PUT",
            f"user/{USER}/jobs/x/executionType",
            '{"value": "GO"}',
            400,
            "InvalidParametersError",
        ),
        ("GET", "virtual-clusters/mars", None, 404, "NoVirtualClusterError"),
        ("PUT", "virtual-clusters/mars", "{}", 405, "NoApiError"),
        ("GET", "virtual-clusters/closed", None, 403, "ForbiddenUserError"),
    ],
)
def test_errors_have_the_documented_codes(
    site: SupervisorProcess,
    pai: PaiClient,
    method: str,
    path: str,
    body: str | None,
    code: int,
    error: str,
) -> None:
    before = _head(site)
    got, said = pai.ask(method, f"/api/v1/{path}", body)
    assert (got, said["code"]) == (code, error), said
    assert said.keys() == {"code", "message"} and len(said["message"]) > 10
    assert "Traceback" not in said["message"]
    assert pai.ask(method, f"/api/v1/{path}", body, token=None)[0] == 401
    assert _head(site) == before  # nothing is stored


def test_a_type_of_gpus_is_that_of_a_host(pai: PaiClient) -> None:
    def job(type_: str) -> str:
        asks = JOB.replace('"gpuNumber": 0', '"gpuNumber": 1').replace('"taskNumber": 2,', "")
        asks = asks.replace('"image"', f'"gpuType": "{type_}", "image"')
        return asks.replace("count-to-three", "typed").replace(
            "for i", "echo $CUDA_VISIBLE_DEVICES; for i"
        )

    jobs = f"/api/v1/user/{USER}/jobs"
    code, said = pai.ask("POST", f"{jobs}?noImage=true", job("V100"))
    assert (code, said["code"]) == (400, "InvalidParametersError"), said
    assert "GPUs of the type 'V100', which no host has" in said["message"]
    assert "Tesla K80" in said["message"]
    code, said = pai.ask("POST", f"{jobs}?noImage=true", job("k80"))
    assert code == 202, said
    until(lambda: pai.state("typed") == "SUCCEEDED", "it succeeds")
    (task,) = pai.job("typed")[1]["taskRoles"]["worker"]["taskStatuses"]
    assert task["containerGpus"] == 1
    log = urllib.parse.urlparse(task["containerLog"])
    assert "GPU-aaaa" in pai.ask("GET", log.path)[1]


def test_a_virtual_cluster_is_a_queue(pai: PaiClient) -> None:
    ((name, cluster),) = pai.ask("GET", "/api/v1/virtual-clusters")[1].items()
    assert name == "default" and cluster["capacity"] == 50.0  # the other one is not for this user
    assert cluster["resourcesTotal"]["vCores"] == 4
    assert (cluster["maxCapacity"], cluster["state"]) == (100.0, "running")
    assert cluster["resourcesUsed"].keys() == {"memory", "vCores", "GPUs"}
    assert pai.ask("GET", "/api/v1/virtual-clusters/default")[1].keys() == cluster.keys()


def test_the_job_of_another_user_is_not_found_by_its_id(
    site: SupervisorProcess, pai: PaiClient
) -> None:
    other = PaiClient(site, OTHER)
    code, said = other.ask("POST", f"/api/v1/user/{OTHER}/jobs?noImage=true", LONG)
    assert code == 202, said
    ((row,),) = (site.post("job-list", uid=OTHER)["jobs"],)
    unknown = pai.job("PaiUser2-00000000-command")
    code, said = pai.job(row["jid"])
    assert (code, said["code"]) == (404, "NoJobError") == (unknown[0], unknown[1]["code"])
    assert said["message"].replace(row["jid"], "") == unknown[1]["message"].replace(
        "PaiUser2-00000000-command", ""
    )
    assert other.ask("DELETE", f"/api/v1/user/{OTHER}/jobs/{row['jid']}")[0] == 202
