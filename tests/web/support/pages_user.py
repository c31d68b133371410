"""A user in a real Chromium on the pages below /jobs, and axe-core, which finds faults of
accessibility.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from chromium_user import NETWORK_CHANGED, SECS, ChromiumUser
from playwright.sync_api import Browser, Error
from supervisor_process import SupervisorProcess, until

AXE = Path(__file__).parent / "axe" / "axe.min.js"
_RUN = """async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(document, {runOnly: tags});
  return found.violations.map((v) => [v.id, v.help, v.nodes.map((n) => n.target.join(" ")).slice(0, 5)]);
}"""


class PagesUser(ChromiumUser):
    """A signed-in user on the pages. `uid` names the user's jobs."""

    def __init__(
        self, browser: Browser, site: SupervisorProcess, name: str, **context: Any
    ) -> None:
        super().__init__(browser, site.front + "/jobs", name, **context)
        self.site = site
        signed_in = self.context.request.post(site.front + "/sign-in", data={"name": name})
        assert signed_in.ok, signed_in.text()
        self.uid: str = signed_in.json()["uid"]

    def open(self, path: str = "/jobs") -> "PagesUser":
        self.goto(path)
        self.until(".link-state", "^Live$")
        return self

    def goto(self, path: str) -> None:
        """Open an address. A browser drops its requests when Docker adds a network interface."""
        for tries_left in (4, 3, 2, 1, 0):
            try:
                self.page.goto(self.site.front + path)
                return
            except Error as e:
                if NETWORK_CHANGED not in str(e) or not tries_left:
                    raise

    def rows(self) -> list[tuple[str, str]]:
        """Return title and state of each row of the list of jobs."""
        return [(title, state) for title, state in self.page.evaluate(_ROWS)]

    def until_rows(self, *rows: tuple[str, str]) -> None:
        until(lambda: self.rows() == list(rows), f"the list shows {rows}", SECS)

    def until_url(self, pattern: str) -> None:
        def look() -> object:
            # page.url is as of the last call of the browser
            return re.search(pattern, self.page.evaluate("() => location.href"))

        until(look, f"the address has {pattern}", SECS)

    def until_screen(self, pattern: str) -> str:
        """Wait for a text on the screen of the terminal. Return the screen."""

        def look() -> str | None:
            said: str = self.page.locator(_SCREEN).inner_text().replace("\xa0", " ")
            return said if re.search(pattern, said) else None

        try:
            return until(look, f"the terminal shows {pattern!r}", SECS)
        except pytest.fail.Exception as e:
            pytest.fail(f"{e.msg}\n{self.troubles}\n{self.text('#tab-panel')}")

    def types(self, text: str) -> None:
        """Type a line where the focus is."""
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def violations(self) -> list[Any]:
        """Return the faults of accessibility on the page as it is now."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found: list[Any] = self.page.evaluate(_RUN)
        return found


#: xterm's text of the screen.
_SCREEN = ".shell-screen .xterm-rows"
_ROWS = """() => [...document.querySelectorAll("table.jobs tbody tr")].map(
  (row) => [row.querySelector(".title").innerText, row.dataset.state])"""
