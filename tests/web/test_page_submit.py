"""The page *New job*, and jobs of other users, in a real browser with a real `jobscribe up`."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, shell, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import needs_browser
from pages_user import PagesUser

from jobscribe.web.server.development_login import uid_of

pytestmark = needs_browser

VERSION1 = """{
  "jobName": "numbers",
  "image": "python:3.11",
  "taskRoles": [
    {
      "name": "worker",
      "memoryMB": "lots",
      "comand": "echo from the image"
    }
  ]
}
"""
#: Drop a file with this text on the page; paste this many letters.
DROP = """(text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "numbers.json"));
  const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
  document.querySelector(".editor").dispatchEvent(event);
}"""
PASTE = """(length) => {
  const data = new DataTransfer();
  const text = "a".repeat(length);
  data.setData("text/plain", text);
  // Chromium reads clipboardData; Firefox reads the other two
  const given = {clipboardData: data, data: text, dataType: "text/plain"};
  const event = new ClipboardEvent("paste", {...given, bubbles: true, cancelable: true});
  return document.querySelector(".editor textarea").dispatchEvent(event);
}"""
SELECTED = """() => {
  const field = document.activeElement;
  return field.value?.slice(field.selectionStart, field.selectionEnd);
}"""
WIDE = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorProcess]:
    """Share one site, where `chief` is an administrator, and `lead` one of the group of `cho`."""
    users = tmp_path_factory.mktemp("site") / "users.yaml"
    group = {"admins": [uid_of("lead", "")], "members": [uid_of("cho", "")]}
    users.write_text(json.dumps({"admins": [uid_of("chief", "")], "groups": {"physics": group}}))
    users.chmod(0o600)
    sets = ("slots.local_sequential=4", f"auth.users={users}", "resources.local_cpu=4")
    site = SupervisorProcess(sets, web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def field(user: PagesUser, label: str) -> Any:
    return user.page.get_by_label(label, exact=True)


def editor(user: PagesUser) -> Any:
    return user.page.locator(".editor textarea")


def retype(user: PagesUser, line: int, old: str, new: str) -> None:
    """Go to the line of a problem, which is then selected, and type another one."""
    user.page.get_by_role("button", name=f"Line {line}").click()
    until(lambda: user.page.evaluate(SELECTED) == old, f"line {line} is selected")
    user.page.keyboard.type(new)


def test_a_job_from_the_form_runs_and_nothing_typed_is_lost(
    browser: Any, site: SupervisorProcess
) -> None:
    ann = PagesUser(browser, site, "ann", viewport=WIDE).open("/submit")
    assert ann.violations() == []
    field(ann, "Command or script").fill("echo one; echo $STEPS; sleep 1000")
    field(ann, "Cores").fill("many")
    field(ann, "Environment").fill("STEPS=42\nAPI_TOKEN=abcdefgh")
    ann.until(".verdict", "^2 problems, marked in the form")
    ann.until("#job-cores-hint .wrong", "many")
    ann.until("#job-env-hint .wrong", "looks like a secret")
    assert ann.violations() == []
    # the command line follows the form
    field(ann, "Cores").fill("2")
    field(ann, "Environment").fill("STEPS=42")
    ann.until(".verdict", "^No problems")
    ann.until("[aria-label='Command line'] pre", "--cpu 2 .*--env STEPS=42 -- /bin/bash -c")
    ann.until("[aria-label='Dry run'] pre", "role main: 1 x 2 CPU")
    field(ann, "Name").fill("first")
    field(ann, "Tags").fill("a, b")
    ann.until("[aria-label='Command line'] pre", "--name first")
    assert ann.violations() == []

    # several roles, whose fields are in the same form
    ann.page.get_by_role("button", name="Add a role").click()
    field(ann, "Command").nth(1).fill("echo work")
    field(ann, "Tasks").nth(1).fill("2")
    field(ann, "Completes after").nth(1).fill("3")
    ann.until("#role-1-succeeded-hint .wrong", "3 is more than the 2 tasks")
    assert ann.violations() == []
    field(ann, "Completes after").nth(1).fill("2")
    ann.until("[aria-label='Dry run'] pre", "role worker: 2 x")
    ann.page.get_by_role("button", name="Remove role worker").click()
    ann.page.get_by_role("button", name="Remove role main").click()
    assert field(ann, "Command or script").input_value().startswith("echo one")

    # the session ends while the form is filled; a reload and a sign-in bring it back
    ann.expected.append("/page-data/|/live")
    ann.context.clear_cookies()
    field(ann, "Longest run time").fill("10m")
    ann.until("main [role=alert]", "You are not signed in")
    ann.page.get_by_role("button", name="Submit").click()
    ann.until("main", "The job is not submitted. What you typed is kept")
    ann.page.reload()
    ann.until("main", "You are not signed in")
    ann.context.request.post(site.front + "/sign-in", data={"name": "ann"})
    ann.open("/submit")
    assert field(ann, "Command or script").input_value().startswith("echo one")
    assert [field(ann, f).input_value() for f in ("Name", "Cores", "Longest run time")] == [
        "first", "2", "10m",
    ]  # fmt: skip
    # another tab has a draft of its own
    other = ann.context.new_page()
    other.goto(site.front + "/submit")
    assert other.get_by_label("Command or script").input_value() == ""
    other.get_by_label("Command or script").fill("another")
    other.close()

    # the supervisor is away: the page says so, tries again, and the job starts once
    site.stop(signal.SIGKILL)
    ann.expected.append(".")
    ann.page.get_by_role("button", name="Submit").click()
    ann.until("main", "The job is not submitted yet. The page tries again")
    until(lambda: not site.titled("server"), "its front end has left the port")
    front = site.front
    site.process = site.fork_or_launch()
    assert site.process.stdout is not None and site.process.stdout.readline()
    site.read_address()
    assert site.front == front
    ann.until_url(f"/jobs/{ann.uid}-")
    ann.until("h1", "^first$")
    ann.until(".facts", r"Tags\s*a\s*b")
    ann.until(".log", "^one\n42")
    jobs = site.post("job-search", uid=ann.uid)["jobs"]
    assert [job["name"] for job in jobs] == ["first"]
    # the same job again is another one
    first = ann.page.evaluate("() => location.pathname")
    ann.page.go_back()
    ann.page.get_by_role("button", name="Submit").click()
    ann.until_url(f"/jobs/{ann.uid}-")
    ann.until("h1", "^first$")
    assert ann.page.evaluate("() => location.pathname") != first
    for job in site.post("job-search", uid=ann.uid)["jobs"]:
        _, sid, model = job["jid"].split("-")
        site.cancel({"uid": ann.uid, "simulationId": sid, "computeModel": model})
    ann.until(".page-head .state", "^canceled$")
    assert ann.troubles == []
    ann.close()


def test_a_pasted_configuration_is_corrected_while_it_is_typed(
    browser: Any, site: SupervisorProcess, tmp_path: Path
) -> None:
    bob = PagesUser(browser, site, "bob", viewport=WIDE).open("/submit?tab=file")
    bob.page.evaluate(DROP, VERSION1)
    bob.until(".verdict", "3 problems. A configuration of OpenPAI, version 1")
    bob.until(".problems", r"Line 7\s+taskRoles\[0\].memoryMB")
    assert bob.violations() == []
    retype(bob, 8, '      "comand": "echo from the image"', '      "command": "echo from here"')
    bob.until(".verdict", "^1 problem")
    retype(bob, 7, '      "memoryMB": "lots",', '      "memoryMB": 100,')
    # the site has no containers, and the configuration has an image
    bob.until(".problems", "runs tasks without containers")
    bob.page.get_by_label("Run the commands without their images").check()
    bob.until(".verdict", "No problems")
    bob.until("[aria-label='Dry run'] pre", r"^job numbers \(1 task\)")
    assert bob.violations() == []
    bob.page.reload()
    bob.until(".verdict", "No problems")

    # files that are no job files, or too large, change nothing
    (tmp_path / "noise.bin").write_bytes(b"\xff\xfe\0" * 100)
    (tmp_path / "large.yaml").write_bytes(b"a" * 50_000_000)
    for name, said in (("noise.bin", "no text in UTF-8"), ("large.yaml", "has 47.7 MiB; at most")):
        bob.page.locator(".file-head input").set_input_files(tmp_path / name)
        until(lambda said=said: said in bob.page.locator(".notices").inner_text(), said)
    assert not bob.page.evaluate(PASTE, 2_000_000), "the browser does not paste it"
    until(lambda: "The text has 1.9 MiB" in bob.page.locator(".notices").inner_text(), "a notice")
    assert "echo from here" in editor(bob).input_value()
    bob.page.get_by_role("button", name="Submit").click()
    bob.until_url(f"/jobs/{bob.uid}-")
    bob.until(".page-head .state", "^completed$")
    bob.until(".log", "^from here")
    assert bob.troubles == []
    bob.close()


def test_an_administrator_sees_and_cancels_a_job_of_another_user(
    browser: Any, site: SupervisorProcess
) -> None:
    cho = PagesUser(browser, site, "cho", viewport=WIDE)
    run = shell("echo hello from cho; sleep 1000", cho.uid, simName="endless")
    site.submit(run)
    jid = jid_of(run)
    dan = PagesUser(browser, site, "dan", viewport=WIDE)
    dan.open("/jobs?scope=all")
    dan.until("main", "Nobody has jobs yet")
    dan.expected.append("/page-data/|/live")
    dan.page.goto(f"{site.front}/jobs/{jid}")
    dan.until("main", "There is no such job, or it is not yours")
    assert dan.troubles == []
    dan.close()

    chief = PagesUser(browser, site, "chief", viewport=WIDE).open()
    chief.until("main", "You have no jobs yet")
    chief.page.get_by_role("button", name="All", exact=True).click()
    chief.until_url(r"\?scope=all$")
    until(lambda: ("endless", "running") in chief.rows(), "the job is listed")
    # the list and the page of the job are live
    chief.until(".link-state", "^Live$")
    short = shell("sleep 0.2", cho.uid, simName="short")
    site.submit(short)
    until(lambda: ("short", "completed") in chief.rows(), "the list changes")
    chief.page.get_by_role("link", name=cho.uid).first.click()
    chief.until_url(f"user={cho.uid}")
    chief.until_rows(("short", "completed"), ("endless", "running"))
    assert chief.violations() == []
    # the view gets a name, which another tab sees
    chief.page.get_by_role("button", name="Save this view …").click()
    chief.page.get_by_label("Name", exact=True).fill("jobs of cho")
    chief.page.reload()  # what was typed is kept
    chief.page.get_by_role("button", name="Save this view …").click()
    assert chief.page.get_by_label("Name", exact=True).input_value() == "jobs of cho"
    chief.page.get_by_role("button", name="Save", exact=True).click()
    chief.page.goto(f"{site.front}/jobs")
    chief.page.get_by_role("link", name="jobs of cho").click()
    chief.until_rows(("short", "completed"), ("endless", "running"))
    assert chief.violations() == []
    # the administrator of the group sees the jobs of its members only, and may not enter them
    stranger = PagesUser(browser, site, "eve")
    site.submit(shell("sleep 1000", stranger.uid, simName="foreign"))
    stranger.close()
    lead = PagesUser(browser, site, "lead", viewport=WIDE).open()
    lead.until("main", "You have no jobs yet")
    lead.page.get_by_role("button", name="My group", exact=True).click()
    lead.until_url(r"\?scope=group$")
    lead.until_rows(("short", "completed"), ("endless", "running"))
    assert lead.violations() == []
    lead.page.get_by_role("link", name="endless").click()
    lead.until(".log", "^hello from cho")
    assert lead.page.get_by_role("button", name="Cancel …").is_visible()
    assert lead.page.get_by_role("button", name="Shell", exact=True).count() == 0
    assert lead.troubles == []
    lead.close()
    # its page has output and actions
    chief.page.get_by_role("link", name="endless").click()
    chief.until("h1", "^endless$")
    chief.until(".facts", f"User\\s*{cho.uid}")
    chief.until(".log", "^hello from cho")
    chief.until(".link-state", "^Live$")
    assert chief.violations() == []
    chief.page.go_back()
    chief.page.get_by_label("Choose endless").check()
    chief.page.get_by_role("button", name="Cancel 1").click()
    chief.page.get_by_label("Reason", exact=True).fill("maintenance")
    assert chief.violations() == []
    chief.page.get_by_role("button", name="Cancel job").click()
    chief.until(".notice", "1 job canceled")
    assert site.wait(run)["state"] == "canceled"
    story = site.post("job-story", uid=cho.uid, computeJid=jid)
    assert "maintenance" in str(story["events"])
    acts = site.post("audit", actor=chief.uid)
    assert "run-cancel" in str(acts) and cho.uid in str(acts)
    assert chief.troubles == []
    chief.close()
    cho.close()
