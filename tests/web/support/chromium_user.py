"""A user with a real Chromium on the real page, who only reads the screen and presses visible
controls.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, ConsoleMessage, Download, Page, Request
from supervisor_process import until

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECS = 40.0

_PIXELS = """async () => {
  const canvas = document.getElementById("canvas");
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const frame = canvas.dataset.frame ?? "";
  return {frame, digest: [...digest].join(","), colours: new Set(new Uint32Array(data.buffer)).size, label: canvas.getAttribute("aria-label")};
}"""


class Picture(NamedTuple):
    """One picture. frame: its number, -1 for a result. digest: of the canvas' pixels. colours:
    their number. label: the text for screen readers.
    """

    frame: int
    digest: str
    colours: int
    label: str


class ChromiumUser:
    """A signed-in user. troubles: problems that the browser reported, such as exceptions and
    violations of the content security policy.
    """

    def __init__(self, browser: Browser, url: str, name: str, **context: Any) -> None:
        self.name = name
        self.context = browser.new_context(locale="en-GB", **context)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(SECS * 1000)
        self.troubles: list[str] = []
        self.live: list[Request] = []
        #: addresses whose failures are expected
        self.expected: list[str] = ["/who$"]
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on(
            "request",
            lambda request: (
                self.live.append(request) if re.search(r"/live(\?|$)", request.url) else None
            ),
        )
        self.page.goto(url)

    def _said(self, message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        ours = "willReadFrequently" in message.text  # only these tests read the pixels repeatedly
        if (
            message.type in ("error", "warning")
            and not ours
            and not any(re.search(e, place) for e in self.expected)
        ):
            self.troubles.append(f"{message.text} {place}")

    def close(self) -> None:
        # pending requests would fail, and in a later test
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()

    # ---- reading the page

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def sees(self, selector: str) -> bool:
        return self.page.locator(selector).is_visible()

    def until(self, selector: str, pattern: str, secs: float = SECS) -> str:
        """Wait until this element is visible and matches the pattern. Return its text."""

        def look() -> str | None:
            found = self.page.locator(selector)
            said = found.inner_text() if found.is_visible() else ""
            return said if re.search(pattern, said) else None

        text: str = until(look, f"{selector} shows {pattern!r}", secs)
        return text

    def until_state(self, state: str, secs: float = SECS) -> None:
        until(lambda: self.state() == state, f"the run that is shown is {state}", secs)

    def state(self) -> str:
        return self.page.locator("#shown").get_attribute("data-state") or ""

    def jid(self) -> str:
        """Return the computeJid of the visible run."""
        return self.page.locator("#shown").get_attribute("data-run") or ""

    def percent(self) -> int:
        found = re.match(r"(\d+)", self.text("#percent"))
        return int(found[1]) if found else -1

    def picture(self) -> Picture:
        said = self.page.evaluate(_PIXELS)
        return Picture(
            int(said["frame"] or -1), said["digest"], said["colours"], said["label"] or ""
        )

    def until_frame(self, least: int, secs: float = SECS) -> Picture:
        def look() -> Picture | None:
            if not self.sees("#canvas"):
                return None
            picture = self.picture()
            return picture if picture.frame >= least else None

        found: Picture = until(look, f"frame {least} or a later one is drawn", secs)
        return found

    def runs(self) -> dict[str, str]:
        """Return the text of each entry in the list of runs, by computeJid."""
        items = self.page.locator("#runs > li")
        return {
            i.get_attribute("data-run") or "": i.locator(".chip").inner_text() for i in items.all()
        }

    # ---- user actions

    def sign_in(self) -> "ChromiumUser":
        self.page.locator("#name").fill(self.name)
        self.page.locator("#name").press("Enter")
        self.until("#user", re.escape(self.name))
        self.until("#link", "^live$")
        return self

    def fill(self, app: str, **fields: Any) -> None:
        self.page.locator("#app").select_option(app)
        for name, value in fields.items():
            place = self.page.locator(f"#field-{name}")
            if place.evaluate("e => e.tagName") == "SELECT":
                place.select_option(value)
            else:
                place.fill(str(value))

    def start(self, app: str, **fields: Any) -> str:
        """Start a run and return its computeJid, which the page then shows."""
        before = self.jid()
        self.fill(app, **fields)
        self.page.locator("#start").click()
        found: str = until(lambda: (now := self.jid()) != before and now, "another run is shown")
        return found

    def show(self, jid: str) -> None:
        self.page.locator(f"#runs > li[data-run='{jid}'] > button").click()
        until(lambda: self.jid() == jid, f"{jid} is shown")

    def download(self, name: str) -> tuple[str, bytes]:
        with self.page.expect_download() as wanted:
            self.page.locator("#files a", has_text=name).click()
        got: Download = wanted.value
        return got.suggested_filename, Path(got.path()).read_bytes()
