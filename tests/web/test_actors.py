"""Every operation by every kind of user on a real supervisor. Other users' objects and missing
objects get the same answer.
"""

import hashlib
from typing import Any

import pytest
from front_end_fixture import ADM, ANN, BOB, FrontEnd, followed, refused

from jobscribe.web.blueprint.routes import ROUTES

from .test_gates import CHANGING

SID, REPORT = (
    "mine0001",
    {"simulationType": "odd", "simulationId": "mine0001", "report": "oddReport"},
)


@pytest.fixture(scope="module")
def anns_run(module_site: Any) -> dict[str, Any]:
    """Create a completed run of Ann and a file in her library."""
    web = FrontEnd(str(module_site.root))
    ann = web.as_(ANN)
    ann.put("/lib-file/odd/mine.txt", b"anns own")
    said = followed(ann, ann.said("/run-simulation", REPORT))
    assert said["state"] == "completed", said
    web.close()
    return dict(said)


def operation(api: str, sid: str, serial: int, name: str) -> tuple[str, str, dict[str, Any]]:
    """Return (method, path, options) of an operation on this simulation."""
    named = {"simulationType": "odd", "simulationId": sid, "report": "oddReport"}
    headers = {"headers": {"X-Jobscribe": "1"}}
    match api:
        case "runStatus":
            return "POST", "/run-status", {"json": named}
        case "runCancel":
            return "POST", "/run-cancel", {"json": named}
        case "simulationFrame":
            return "GET", f"/simulation-frame/0*oddAnimation*{sid}*odd*ab*{serial}", {}
        case "analysisJob":
            return "POST", "/analysis-job", {"json": {**named, "method": "where"}}
        case "downloadRunFile":
            return "GET", f"/download-run-file/odd/{sid}/oddReport/-1?suffix=big10", {}
        case "runFiles":
            return "GET", f"/run-files/odd/{sid}/oddReport", {}
        case "runLog":
            return "GET", f"/run-log/odd/{sid}/oddReport", {}
        case "runWhy":
            return "GET", f"/run-why/odd/{sid}/oddReport", {}
        case "getLibFile":
            return "GET", f"/lib-file/odd/{name}", {}
        case "deleteLibFile":
            return "DELETE", f"/lib-file/odd/{name}", headers
        case "jobFilePage":
            return "GET", f"/page-data/job-file/{ANN}-{sid}-oddReport?name=big10", {}
        case "jobOutputPage":
            return "GET", f"/page-data/job-output/{ANN}-{sid}-oddReport", {}
        case "tracePage":
            return "POST", "/page-data/trace", {"json": {"id": f"{ANN}-{sid}-oddReport"}}
        case "jobRetryPage" | "runCancelPage":
            asked = {"computeJid": f"{ANN}-{sid}-oddReport", "reqId": f"{api}-{sid}"}
            return "POST", f"/page-data/{api[:3]}-{api[3:-4].lower()}", {"json": asked}
        case "jobClonePage":
            asked = {"computeJid": f"{ANN}-{sid}-oddReport", "reqId": f"{api}-{sid}"}
            return "POST", "/page-data/job-clone", {"json": {**asked, "definition": {}}}
        case "runFilePartPage":
            asked = {"computeJid": f"{ANN}-{sid}-oddReport", "name": "b", "size": 1}
            body = {**asked, "sha256": hashlib.sha256(b"b").hexdigest()}
            return "POST", "/page-data/run-file-part", {"json": body}
        case "putJobFilePage":
            query = f"name=a&size=1&sha256={hashlib.sha256(b'a').hexdigest()}"
            path = f"/page-data/job-file/{ANN}-{sid}-oddReport?{query}"
            return "PUT", path, {"data": b"a", **headers}
        case "jobFileSitePage":
            return "GET", f"/page-data/site/job-file/{ANN}-{sid}-oddReport?name=big10", {}
        case "jobOutputSitePage":
            return "GET", f"/page-data/site/job-output/{ANN}-{sid}-oddReport", {}
        case "traceSitePage":
            asked = {"id": f"{ANN}-{sid}-oddReport", "uid": ANN}
            return "POST", "/page-data/site/trace", {"json": asked}
        case "shellOpenSitePage" | "shellUseSitePage":
            asked = {"computeJid": f"{ANN}-{sid}-oddReport", "uid": ANN, "shellId": "s" * 32}
            return "POST", f"/page-data/site/shell-{api[5:-8].lower()}", {"json": asked}
        case _ if api in ON_OTHERS:
            asked = {"computeJid": f"{ANN}-{sid}-oddReport", "uid": ANN}
            asked |= {"reqId": f"{api}-{sid}"} if api == "runCancelSitePage" else {}
            return "POST", f"/page-data/site/{ON_OTHERS[api]}", {"json": asked}
        case _ if api in PAGES:
            name = PAGES[api]
            return "POST", f"/page-data/{name}", {"json": {"computeJid": f"{ANN}-{sid}-oddReport"}}
        case _:
            raise AssertionError(api)


#: Requests of pages with a computeJid alone.
PAGES = {
    "runStatusPage": "run-status",
    "jobTasksPage": "job-tasks",
    "jobStoryPage": "job-story",
    "jobMetricsPage": "job-metrics",
    "runFilesPage": "run-files",
    "runReleasePage": "run-release",
    "jobTagPage": "job-tag",
    "jobWhyPage": "job-why",
    "jobLogPage": "job-log",
    "jobDefinitionPage": "job-definition",
}
#: The same about any user, where the supervisor decides by the role of the signed-in user.
ON_OTHERS = {f"{api.removesuffix('Page')}SitePage": name for api, name in PAGES.items()}
ON_OTHERS |= {"runCancelSitePage": "run-cancel"}
BY_ROLE = [
    *ON_OTHERS,
    "jobFileSitePage",
    "jobOutputSitePage",
    "traceSitePage",
    "shellOpenSitePage",
    "shellUseSitePage",
]
ON_A_RUN = [
    *PAGES,
    "jobOutputPage",
    "tracePage",
    "jobRetryPage",
    "jobClonePage",
    "putJobFilePage",
    "runFilePartPage",
    "runCancelPage",
    "runStatus",
    "runCancel",
    "simulationFrame",
    "analysisJob",
    "downloadRunFile",
    "jobFilePage",
    "runFiles",
    "runLog",
    "runWhy",
    "getLibFile",
    "deleteLibFile",
]
#: Operations that name no object of a user: they concern the requesting user or no user.
ABOUT_ONESELF = {
    "jobSearchPage",
    "jobOptionsPage",
    "jobCheckPage",
    "runTextPage",
    "jobSearchSitePage",
    "debugListSitePage",
    "whoamiSitePage",
    "usagePage",
    "diskUsagePage",
    "tokenListPage",
    "tokenCreatePage",
    "tokenRevokePage",
    "signInsPage",
    "signInEndPage",
    "apiDocumentPage",
    "queuesSitePage",
    "poolSitePage",
    "poolCheckSitePage",
    "clustersSitePage",
    "agentsSitePage",
    "agentLogsSitePage",
    "siteHealthSitePage",
    "siteDrainSitePage",
    "siteDrainsSitePage",
    "siteLoadSitePage",
    "siteUsersSitePage",
    "siteTokensSitePage",
    "tokenRevokeSitePage",
    "siteSupervisorsSitePage",
    "siteConfigurationSitePage",
    "retentionSitePage",
    "retentionSweepSitePage",
    "notifySitePage",
    "notifyTestSitePage",
    "notifyRetrySitePage",
    "auditSitePage",
    "runSimulation",
    "statelessCompute",
    "statefulCompute",
    "beginSession",
    "ownJobs",
    "admJobs",
    "admCounters",
    "jobSupervisorPing",
    "globalResources",
    "libFiles",
    "putLibFile",
    "liveTicket",
    "apps",
    "clusters",
    "sbatchLogin",
    "sbatchLoginStatus",
    "sbatchLogout",
}


def test_no_operation_is_left_out() -> None:
    assert {r.api for r in ROUTES} == set(ON_A_RUN) | set(BY_ROLE) | ABOUT_ONESELF
    assert {r.api for r in CHANGING} < {r.api for r in ROUTES}


@pytest.mark.parametrize("api", ON_A_RUN)
@pytest.mark.parametrize("uid", [BOB, ADM], ids=["another", "admin"])
def test_not_yours_is_not_there(
    real: FrontEnd, anns_run: dict[str, Any], api: str, uid: str
) -> None:
    browser, serial = real.as_(uid), anns_run["computeJobSerial"]
    answers = []
    for sid, name in ((SID, "mine.txt"), ("nowhere1", "none.txt")):
        method, path, options = operation(api, sid, serial, name)
        answer = browser.ask(method, path, **options)
        text = answer.get_data(as_text=True).replace(sid, "SID").replace(name, "NAME")
        answers.append(
            (
                answer.status_code,
                text,
                {k: v for k, v in answer.headers.items() if k not in ("Content-Length", "Date")},
            )
        )
    assert answers[0] == answers[1]
    status, text, _ = answers[0]
    if api in ("runStatus", "runCancel"):
        assert status == 200 and '"missing"' in text and '"noRun"' in text
    else:
        assert (status, '"notFound"' in text) == (404, True), (status, text)


@pytest.mark.parametrize("api", BY_ROLE)
def test_others_jobs_are_for_those_with_a_role(
    real: FrontEnd, anns_run: dict[str, Any], api: str
) -> None:
    serial = anns_run["computeJobSerial"]
    answers = []
    for sid in (SID, "nowhere1"):
        method, path, options = operation(api, sid, serial, "")
        answer = real.as_(BOB).ask(method, path, **options)
        refused(answer, 403, "forbidden")
        answers.append(answer.get_data(as_text=True).replace(sid, "SID"))
        refused(real.as_(None).ask(method, path, **options), 401, "unauthenticated")
    assert answers[0] == answers[1]
    # the administrator gets the owner's answer: this run has no such file, and is over
    method, path, options = operation(api, SID, serial, "")
    for uid in (ADM, ANN):
        answer = real.as_(uid).ask(method, path, **options)
        wanted = 404 if api == "jobFileSitePage" else 200
        assert answer.status_code == wanted, (uid, answer.get_data(as_text=True))


@pytest.mark.parametrize("api", ON_A_RUN)
def test_nobody_learns_nothing(real: FrontEnd, anns_run: dict[str, Any], api: str) -> None:
    for sid, name in ((SID, "mine.txt"), ("nowhere1", "none.txt")):
        method, path, options = operation(api, sid, anns_run["computeJobSerial"], name)
        refused(real.as_(None).ask(method, path, **options), 401, "unauthenticated")


def test_the_owner_can_do_it_all(real: FrontEnd, anns_run: dict[str, Any]) -> None:
    ann = real.as_(ANN)
    for api in ON_A_RUN:
        if api in ("jobRetryPage", "jobClonePage"):
            continue  # they would start another run; tests/web/test_pages.py, test_job_edits.py
        method, path, options = operation(api, SID, anns_run["computeJobSerial"], "mine.txt")
        answer = ann.ask(method, path, **options)
        # this run has no frames and no such file, and its owner gets that error
        if api in ("simulationFrame", "jobFilePage"):
            assert answer.status_code in (404, 422)
        else:
            assert answer.status_code == 200, (api, answer.get_data(as_text=True))
    ann.put("/lib-file/odd/mine.txt", b"anns own")


def test_the_same_simulation_of_two_users_is_two_runs(
    real: FrontEnd, anns_run: dict[str, Any]
) -> None:
    bob = real.as_(BOB)
    said = bob.said("/run-simulation", REPORT)
    assert said["state"] in ("pending", "running")
    said = followed(bob, said)
    assert (said["state"], said["computeJid"]) == ("completed", f"{BOB}-{SID}-oddReport")
    assert (
        real.as_(ANN).said("/run-status", REPORT)["computeJobSerial"]
        == anns_run["computeJobSerial"]
    )


def test_each_sees_own_jobs_and_files_and_the_administrator_all_jobs(
    real: FrontEnd, anns_run: dict[str, Any]
) -> None:
    slow = {
        "simulationType": "odd",
        "report": "oddAnimation",
        "models": {"oddAnimation": {"secs": 60.0}},
    }
    started = {}
    for uid in (ANN, BOB):
        started[uid] = real.as_(uid).said(
            "/run-simulation", {**slow, "simulationId": f"slow0{uid[:3]}"}
        )["computeJid"]
    try:
        for uid in (ANN, BOB):
            assert [j["computeJid"] for j in real.as_(uid).said("/own-jobs")["jobs"]] == [
                started[uid]
            ]
        everybodys = real.as_(ADM).said("/adm-jobs")["jobs"]
        assert {j["computeJid"] for j in everybodys} == set(started.values())
        assert {j["simulationType"] for j in everybodys} == {"odd"}
        assert real.as_(ADM).said("/own-jobs")["jobs"] == []
        refused(real.as_(ANN).post("/adm-jobs"), 403, "forbidden")
        refused(real.as_(None).post("/adm-jobs"), 401, "unauthenticated")
    finally:
        for uid, jid in started.items():
            named = {
                "simulationType": "odd",
                "simulationId": jid.split("-")[1],
                "report": "oddAnimation",
            }
            assert real.as_(uid).said("/run-cancel", named)["state"] == "canceled"
    names = [f["name"] for f in real.as_(BOB).get("/lib-files/odd").get_json()["files"]]
    assert "mine.txt" not in names
    assert (
        "mine.txt"
        in real.as_(ANN).said("/stateful-compute", {"simulationType": "odd", "method": "library"})[
            "names"
        ]
    )
    assert (
        "mine.txt"
        not in real.as_(BOB).said(
            "/stateful-compute", {"simulationType": "odd", "method": "library"}
        )["names"]
    )
