"""The test cases of the reference system, applied to this API. The numbers are the rows of that
list.

Rows 4 and 39 are whole test modules here (tests/integration, tests/unit/supervisor, tests/chaos;
tests/integration/test_start_refused.py); 35 to 38 and 42 concern clusters and another product.
`myapp`, `heat` and the apps of site_hooks.py replace codes that are not here.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from http_browser import Browser
from supervisor_process import SupervisorProcess, fresh_nap, naps, until

LONG = 600.0


def test_1_a_run_is_canceled_and_stays_so(browser: Browser) -> None:
    simulation = browser.simulation("slowAnimation", "slow", secs=LONG)
    reply = browser.run(simulation)
    browser.until_state(simulation, "running")
    assert browser.cancel(simulation)["state"] == "canceled"
    assert browser.post("/run-status", **reply["nextRequest"])["state"] == "canceled"


def test_2_18_28_a_report_completes_with_its_plots(browser: Browser) -> None:
    reply = browser.finished(browser.simulation("heightWeightReport", "myapp"))
    assert reply["state"] == "completed"
    assert [p["label"] for p in reply["plots"]] == ["Height [cm]", "Weight [kg]"]
    assert all(len(p["points"]) == len(reply["x"]) for p in reply["plots"])


def test_3_a_run_whose_directory_is_gone_is_computed_anew(browser: Browser) -> None:
    simulation = browser.simulation("heightWeightReport", "myapp")
    first = browser.finished(simulation)
    again = browser.run(simulation)
    assert (again["state"], again["computeJobSerial"], again["plots"]) == (
        "completed",
        first["computeJobSerial"],
        first["plots"],
    )
    shutil.rmtree(browser.run_dir(simulation))
    third = browser.finished(simulation)
    assert third["state"] == "completed" and third["plots"] == first["plots"]
    assert third["computeJobSerial"] > first["computeJobSerial"]


def test_3_also_one_with_frames(browser: Browser) -> None:
    simulation = browser.simulation("heatAnimation")
    first = browser.finished(simulation)
    shutil.rmtree(browser.run_dir(simulation))
    second = browser.finished(simulation)
    assert (
        second["computeJobSerial"] > first["computeJobSerial"]
        and second["frameCount"] == first["frameCount"]
    )


def test_5_24_stateful_stateless_and_analysis(browser: Browser) -> None:
    def dogs(method: str, **args: Any) -> Any:
        return browser.post("/stateful-compute", simulationType="myapp", method=method, args=args)

    methods = _methods(browser)
    assert {k: len(v) for k, v in methods.items()} == {"stateful": 3, "stateless": 1, "analysis": 1}
    simulation = browser.simulation("heightWeightReport", "myapp")
    browser.finished(simulation)
    said = browser.post("/analysis-job", **simulation, method=methods["analysis"][0], args={})
    assert set(said) >= {"height", "weight"}


def _methods(browser: Browser) -> dict[str, list[str]]:
    """Return the available methods by kind, from the refusal of an unknown method."""
    simulation = browser.simulation("heightWeightReport", "myapp")
    browser.finished(simulation)
    out = {}
    for kind, path, body in (
        ("stateful", "/stateful-compute", {"simulationType": "myapp"}),
        ("stateless", "/stateless-compute", {"simulationType": "myapp"}),
        ("analysis", "/analysis-job", simulation),
    ):
        said = browser.refused(path, **body, method="nosuchmethod")
        assert (said["http"], said["code"]) == (404, "notFound")
        out[kind] = said["error"].partition("it has ")[2].rstrip(".").split(", ")
    return out


def test_6_a_method_that_is_none_is_refused_by_name(browser: Browser) -> None:
    said = browser.refused("/stateless-compute", simulationType="myapp", method="0x23")
    assert "0x23" in said["error"]


def test_7_one_window_runs_another_cancels(browser: Browser) -> None:
    simulation = browser.simulation("slowAnimation", "slow", secs=LONG)
    browser.run(simulation)
    assert browser.another_window().cancel(simulation)["state"] == "canceled"
    assert browser.status(simulation)["state"] == "canceled"
    simulation["models"]["slowAnimation"]["secs"] = 0.0
    assert browser.finished(simulation)["state"] == "completed"


def test_8_15_canceling_one_simulation_lets_the_next_one_run_and_disturbs_no_other(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    browser = Browser(make_site("slots.local_parallel=1")).sign_in("alice")
    first, second = (browser.simulation("slowAnimation", "slow", secs=LONG) for _ in range(2))
    browser.run(first)
    browser.until_state(first, "running")
    assert browser.run(second)["state"] == "pending"
    waits = browser.until_state(second, "pending")
    assert any(c.isdigit() for c in waits["jobStatusMessage"]), "why it waits is said with numbers"
    assert browser.cancel(first)["state"] == "canceled"
    browser.until_state(second, "running")
    assert browser.cancel(second)["state"] == "canceled"
    assert browser.run(first)["state"] in ("pending", "running")
    browser.cancel(first)


def test_9_the_same_frame_for_many_at_once(browser: Browser) -> None:
    simulation = browser.simulation("heatAnimation")
    status = browser.finished(simulation)
    windows = [browser.another_window() for _ in range(6)]
    bodies: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda w=w: bodies.extend(w.frame(simulation, status, 3).body for _ in range(3))
        )
        for w in windows
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(bodies) == 18 and len(set(bodies)) == 1
    assert json.loads(bodies[0])["frameIndex"] == 3


def test_10_a_run_over_its_time_is_canceled(make_site: Callable[..., SupervisorProcess]) -> None:
    browser = Browser(make_site("limits.time_limit_secs=1")).sign_in("alice")
    reply = browser.finished(browser.simulation("slowAnimation", "slow", secs=LONG))
    assert (reply["state"], reply["reason"], reply["canceledAfterSecs"]) == (
        "canceled",
        "timeLimit",
        1.0,
    )


def test_11_a_download_that_takes_too_long_is_given_up_and_the_run_stays_completed(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    browser = Browser(make_site("limits.call_secs=1")).sign_in("alice")
    simulation = browser.simulation("slowAnimation", "slow")
    assert browser.finished(simulation)["state"] == "completed"
    answer = browser.download(simulation, "late")
    assert (answer.code, answer.json()["code"]) == (504, "deadline")
    assert browser.status(simulation)["state"] == "completed"
    assert browser.download(simulation).code == 200


def test_12_13_14_who_sees_which_jobs(site: SupervisorProcess) -> None:
    alice, bob, admin = (Browser(site).sign_in(n) for n in ("alice", "bob", "root of all"))
    (site.place / "admins").write_text(admin.uid)
    mine, theirs = (b.simulation("slowAnimation", "slow", secs=LONG) for b in (alice, bob))
    alice.run(mine)
    bob.run(theirs)
    assert {j["uid"] for j in admin.post("/adm-jobs")["jobs"]} >= {alice.uid, bob.uid}
    assert [(j["simulationId"], j["simulationType"]) for j in bob.post("/own-jobs")["jobs"]] == [
        (theirs["simulationId"], "slow")
    ]
    said = alice.refused("/adm-jobs")
    assert (said["http"], said["code"]) == (403, "forbidden")
    alice.cancel(mine)
    bob.cancel(theirs)
    until(
        lambda: not {alice.uid, bob.uid} & {j["uid"] for j in admin.post("/adm-jobs")["jobs"]},
        "their jobs are not active any more",
    )


def test_16_another_hash_is_missing(browser: Browser) -> None:
    simulation = browser.simulation("heightWeightReport", "myapp")
    browser.finished(simulation)
    said = browser.status(simulation, computeJobHash="x" * 32)
    assert (said["state"], said["reason"]) == ("missing", "computeJobHash-mismatch")
    assert browser.status(simulation, computeJobSerial=1)["reason"] == "computeJobSerial-mismatch"
    assert browser.status(browser.simulation("heightWeightReport", "myapp"))["state"] == "missing"


def test_17_a_cancel_of_another_run_says_so_and_changes_nothing(browser: Browser) -> None:
    simulation = browser.simulation("slowAnimation", "slow", secs=LONG)
    reply = browser.run(simulation)
    browser.until_state(simulation, "running")
    assert browser.cancel(browser.simulation("slowAnimation", "slow"))["state"] == "missing"
    assert browser.cancel(simulation, computeJobHash="x" * 32)["state"] == "missing"
    assert (
        browser.cancel(simulation, computeJobSerial=reply["computeJobSerial"] - 1)["state"]
        == "missing"
    )
    assert browser.status(simulation)["state"] == "running"
    for _ in range(2):
        assert (
            browser.cancel(simulation, computeJobSerial=reply["computeJobSerial"])["state"]
            == "canceled"
        )


def test_8_18_after_a_cancel_nothing_of_it_is_left(browser: Browser) -> None:
    nap = fresh_nap()
    simulation = browser.simulation("slowAnimation", "slow", secs=float(nap.split(".")[0]))
    browser.run(simulation)
    browser.until_state(simulation, "running")
    pids = until(
        lambda: [
            p
            for p, line in browser.site.everybody().items()
            if b"import json, os, sys, time" in line
        ],
        "its program runs",
    )
    browser.cancel(simulation)
    until(lambda: not set(pids) & set(browser.site.everybody()), "its program is gone")
    assert naps(nap) == []


def test_19_the_error_of_a_code_is_the_runs(browser: Browser) -> None:
    said = browser.finished(browser.simulation("slowReport", "slow", trouble="raise"))
    assert (said["state"], said["error"]) == ("error", "a big ugly error")


def test_20_what_the_app_says_to_its_user_is_said_to_the_user(browser: Browser) -> None:
    said = browser.finished(browser.simulation("slowReport", "slow", trouble="alert"))
    assert (said["state"], said["error"]) == ("error", "the magnet is too strong")


def test_21_22_runs_of_free_users_are_purged_and_those_of_others_kept(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(
        "purge.after_secs=2",
        "purge.every_secs=0.5",
        "purge.kept_plans=premium",
        "server.plan_hook=site_hooks:plan",
    )
    free, premium = (Browser(site).sign_in(n) for n in ("free", "premium"))
    (site.place / "premium").write_text(premium.uid)
    runs = []
    for b in (free, premium):
        for simulation in (
            b.simulation("heatAnimation"),
            b.simulation("heightWeightReport", "myapp"),
        ):
            reply = b.finished(simulation)
            assert reply["state"] == "completed" and b.run_dir(simulation).is_dir()
            runs.append((b, simulation, reply))
    for b, simulation, _ in runs[:2]:
        said = b.until_state(simulation, "job_run_purged")
        assert said.get("frameCount", 0) == 0 and "plots" not in said
        folder = b.run_dir(simulation).parent
        until(lambda: not any(folder.iterdir()), "its files are gone")
    frame = free.frame(runs[0][1], runs[0][2], 0)
    assert frame.code == 404, frame
    for b, simulation, reply in runs[2:]:
        assert b.status(simulation)["state"] == "completed" and b.run_dir(simulation).is_dir()
        assert b.status(simulation)["computeJobSerial"] == reply["computeJobSerial"]
    again = free.finished(runs[1][1])
    assert (again["state"], bool(again["plots"])) == ("completed", True)


def test_23_30_a_file_made_by_a_stateful_method(browser: Browser) -> None:
    made = browser.post("/stateful-compute", simulationType="slow", method="picture", args={})
    (file,) = browser.ask("GET", "/lib-files/slow").json()["files"]
    assert (file["name"], file["size"]) == (made["name"], 1004)
    answer = browser.ask("GET", f"/lib-file/slow/{made['name']}")
    assert (answer.code, answer.body[:4]) == (200, b"II*\0")


def test_25_a_session_begins_with_an_agent(browser: Browser) -> None:
    browser.post("/begin-session")
    folder = browser.site.root / "agent" / str(browser.site.agent_key(browser.uid)) / "keeper.json"
    until(folder.exists, "the agent is started")


def test_26_ten_at_once_are_all_well(site: SupervisorProcess) -> None:
    states: list[str] = []

    def one(n: int) -> None:
        window = Browser(site).sign_in(f"user {n}")
        states.append(window.finished(window.simulation("heightWeightReport", "myapp"))["state"])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(10)]
    for t in threads:
        t.start()
        time.sleep(0.02)  # one after the other, as users arrive
    for t in threads:
        t.join()
    assert states == ["completed"] * 10


def test_27_frames_while_it_runs(browser: Browser) -> None:
    simulation = browser.simulation("heatAnimation", paceSecs=0.3)
    browser.run(simulation)
    status = until(
        lambda: (s := browser.status(simulation)).get("frameCount", 0) >= 2 and s,
        "there are two frames",
    )
    assert status["state"] == "running" and 0 < status["percentComplete"] < 100
    one = browser.frame(simulation, status, 1)
    assert (one.code, one.json()["frameIndex"]) == (200, 1)
    late = browser.frame(simulation, status, 90)
    assert (late.code, late.json()["code"]) == (422, "appRefused")
    browser.cancel(simulation)


def test_28_every_frame_of_a_run(browser: Browser) -> None:
    simulation = browser.simulation("heatAnimation", frames=7)
    status = browser.finished(simulation)
    assert status["frameCount"] == 7
    hottest = []
    for index in range(7):
        frame = browser.frame(simulation, status, index).json()
        assert (frame["frameIndex"], frame["frameCount"], len(frame["zMatrix"])) == (
            index,
            7,
            frame["yRange"][2],
        )
        hottest.append(max(max(row) for row in frame["zMatrix"]))
    assert hottest == sorted(hottest, reverse=True) and hottest[0] > hottest[-1], "heat spreads"


def test_29_the_same_simulation_has_the_same_ports(browser: Browser) -> None:
    body = {"simulationType": "slow", "simulationId": "F9999999"}
    one, same = (browser.post("/global-resources", **body) for _ in range(2))
    other = browser.post("/global-resources", **{**body, "simulationId": "F9999998"})
    assert one["ports"] == same["ports"] and not set(one["ports"]) & set(other["ports"])
    browser.post("/global-resources", **body, release=True)


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "a/b", "a%2Fb", "%2e%2e%2fsecret", "x" * 200, "nul%00", "new%0Aline"]
)
def test_30_names_of_files(browser: Browser, name: str) -> None:
    answer = browser.ask(
        "PUT", f"/lib-file/slow/{name}", b"x", {"Content-Type": "application/octet-stream"}
    )
    assert answer.code in (400, 404) and answer.json()["code"] in ("badRequest", "notFound"), answer
    assert (
        not (browser.site.root / "user" / browser.uid / "slow" / "lib").exists()
        or browser.ask("GET", "/lib-files/slow").json()["files"] == []
    )


def test_30_34_an_uploaded_file_is_used_by_the_run_and_decides_its_result(browser: Browser) -> None:
    def put(content: bytes) -> None:
        answer = browser.ask(
            "PUT", "/lib-file/slow/field.txt", content, {"Content-Type": "application/octet-stream"}
        )
        assert (answer.code, answer.json()["size"]) == (200, len(content))

    simulation = browser.simulation("slowReport", "slow", file="field.txt")
    assert browser.refused("/run-simulation", **simulation)["code"] == "appRefused"
    put(b"one")
    first = browser.finished(simulation)
    assert first["content"] == "one"
    put(b"two and more")
    second = browser.finished(simulation)
    assert (
        second["content"] == "two and more" and second["computeJobHash"] != first["computeJobHash"]
    )
    assert browser.ask("DELETE", "/lib-file/slow/field.txt").code == 200
    assert browser.ask("GET", "/lib-files/slow").json()["files"] == []


def test_31_an_upload_over_the_limit(make_site: Callable[..., SupervisorProcess]) -> None:
    browser = Browser(make_site("limits.upload_bytes=1000")).sign_in("alice")
    answer = browser.ask(
        "PUT", "/lib-file/slow/a", b"x" * 1001, {"Content-Type": "application/octet-stream"}
    )
    assert (answer.code, answer.json()["code"]) == (413, "tooLarge")
    assert browser.ask("GET", "/lib-files/slow").json()["files"] == []


def test_32_a_plan_that_has_ended(browser: Browser) -> None:
    (browser.site.place / "expired").write_text(browser.uid)
    said = browser.refused("/run-simulation", **browser.simulation("slowReport", "slow"))
    assert (said["http"], said["code"], said["error"]) == (
        402,
        "planRequired",
        "your trial has ended",
    )


def test_33_a_code_that_needs_a_licence(browser: Browser) -> None:
    simulation = browser.simulation("slowReport", "failing")
    assert browser.refused("/run-simulation", **simulation)["http"] == 403
    (browser.site.place / "proprietary").write_text(browser.uid)
    assert browser.finished(simulation)["state"] == "completed"


def test_34_downloads_have_a_name_and_are_attachments(browser: Browser) -> None:
    simulation = browser.simulation("heightWeightReport", "myapp")
    browser.finished(simulation)
    answer = browser.download(simulation, "csv")
    assert answer.code == 200 and answer.body.startswith(b"week,")
    assert (
        answer.headers["Content-Disposition"].startswith("attachment")
        and "csv" in answer.headers["Content-Disposition"]
    )
    part = browser.download(simulation, "csv", Range="bytes=0-3")
    assert (part.code, part.body) == (206, answer.body[:4])


def test_40_what_cannot_be_sent_is_named(browser: Browser) -> None:
    simulation = browser.simulation("slowReport", "slow", trouble="nan")
    said = browser.finished(simulation)
    assert said["state"] == "error" and "plots[0].points[1]" in said["error"]
    good = browser.simulation("slowReport", "slow")
    browser.finished(good)
    assert "a[0]" in browser.refused("/analysis-job", **good, method="unsendable")["error"]


def test_41_several_users_codes_and_cancels_at_once(site: SupervisorProcess) -> None:
    seen: list[tuple[str, str]] = []

    def user(n: int) -> None:
        b = Browser(site).sign_in(f"load {n}")
        report = b.simulation("heightWeightReport", "myapp")
        animation = b.simulation("heatAnimation", frames=5)
        doomed = b.simulation("slowAnimation", "slow", secs=LONG)
        # first the animation: five doomed runs would hold all slots until they are canceled
        b.run(animation)
        b.run(doomed)
        try:
            status = b.finished(animation)
            seen.append(("report", b.finished(report)["state"]))
            seen.append(("animation", status["state"]))
            seen.append(("frames", str([b.frame(animation, status, i).code for i in range(5)])))
        finally:  # also after a failure: other tests need this site without runs
            seen.append(("doomed", b.cancel(doomed)["state"]))
        seen.append(("download", str(b.download(report, "csv").code)))

    threads = [threading.Thread(target=user, args=(n,)) for n in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wanted = {
        ("report", "completed"),
        ("animation", "completed"),
        ("frames", str([200] * 5)),
        ("doomed", "canceled"),
        ("download", "200"),
    }
    assert len(seen) == 25 and set(seen) == wanted
