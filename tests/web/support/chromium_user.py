"""A user with a real Chromium on the real page, who only reads the screen and presses visible
controls.
"""

import re
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request
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
