"""A user with a real Chromium on the real page, who only reads the screen and presses visible
controls. With BROWSER=firefox in the environment (`make test-firefox`) it is Debian's Firefox.
"""

import contextlib
import copy
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Self

import firefox_bidi
import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    Request,
    sync_playwright,
)
from supervisor_process import until

#: Chromium without windows of its own takes a third less processor time.
_SHELL = "/usr/bin/chromium-headless-shell"
CHROMIUM = _SHELL if os.access(_SHELL, os.X_OK) else "/usr/bin/chromium"
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
IS_FIREFOX = os.environ.get("BROWSER") == "firefox"
#: For tests that need a browser.
needs_browser = pytest.mark.skipif(
    not os.access(firefox_bidi.FIREFOX if IS_FIREFOX else CHROMIUM, os.X_OK),
    reason="the browser is not here; etc/engines/chromium.sh or firefox.sh installs it",
)
SECS = 60.0
#: Waits in the page until the text of an element differs from `last`, at most for a second. A look of
#: the test takes its process, the driver and two of the browser; a change of the document takes none.
_CHANGE = """([selector, last]) => new Promise((done) => {
  const text = () => {
    const found = document.querySelector(selector);
    const box = found?.getBoundingClientRect();
    return box?.width && box.height && getComputedStyle(found).visibility === "visible"
      ? found.innerText : "";
  };
  let planned;
  const look = () => {
    planned = undefined;
    const now = text();
    if (now !== last) end(now);
  };
  const observer = new MutationObserver(() => { planned ??= setTimeout(look, 50); });
  const end = (now) => {
    observer.disconnect();
    clearTimeout(planned);
    clearTimeout(late);
    done(now);
  };
  const late = setTimeout(() => end(text()), 1000);
  observer.observe(document, {attributes: true, characterData: true, childList: true, subtree: true});
  look();
})"""
#: What the browser says of requests that it drops when the machine gets another network interface.
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
_playwright: list[Playwright] = []
_shared: list[Browser] = []


def launched(playwright: Playwright) -> Browser:
    """Return the started browser."""
    if not IS_FIREFOX:
        return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
    path = firefox_bidi.executable(Path(tempfile.mkdtemp()))
    return playwright.firefox.launch(channel="moz-firefox", executable_path=path, timeout=120_000)


def shared_browser() -> Browser:
    """Return the browser of this process. Start one if there is none, or if it has ended."""
    if not _shared or not _shared[0].is_connected():
        close_shared()
        # its event loop counts as running in this thread until `close_shared`
        _playwright.append(sync_playwright().start())
        _shared.append(launched(_playwright[0]))
    return _shared[0]


def close_shared() -> None:
    while _shared:
        _shared.pop().close()
    while _playwright:
        _playwright.pop().stop()


def _is_ours(text: str) -> bool:
    """Return whether these tests caused a message: they read pixels repeatedly, and start containers
    beside the browser. The driver of Firefox adds a style for each picture of the page.
    """
    known = ("willReadFrequently", NETWORK_CHANGED, *(("style-src-elem",) if IS_FIREFOX else ()))
    return any(k in text for k in known)


class ChromiumUser:
    """A signed-in user. troubles: problems that the browser reported, such as exceptions and
    violations of the content security policy.
    """

    def __init__(self, browser: Browser, url: str, name: str, **context: Any) -> None:
        self.name = name
        self.context = browser.new_context(locale="en-GB", **context)
        self.troubles: list[str] = []
        self.live: list[Request] = []
        #: addresses whose failures are expected
        self.expected: list[str] = ["/who$"]
        self.page = self._new_page()
        self.page.goto(url)

    def tab(self) -> Self:
        """Return the same user in another tab, with the same troubles."""
        other = copy.copy(self)
        other.page = self._new_page()
        return other

    def _new_page(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(SECS * 1000)
        page.on("console", self._said)
        page.on("pageerror", self._failed)
        page.on(
            "request",
            lambda request: (
                self.live.append(request) if re.search(r"/live(\?|$)", request.url) else None
            ),
        )
        return page

    def _failed(self, error: Error) -> None:
        if not _is_ours(str(error)):
            self.troubles.append(str(error))

    def _said(self, message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        if (
            message.type in ("error", "warning")
            and not _is_ours(message.text)
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

    def chosen(self, label: str) -> str:
        """Return the chosen option of a field. Firefox does not count options as visible text."""
        found: str = self.page.get_by_label(label).evaluate("e => e.selectedOptions[0].text")
        return found

    def until(self, selector: str, pattern: str, secs: float = SECS) -> str:
        """Wait until this element is visible and matches the pattern. Return its text."""

        found = self.page.locator(selector)
        last = ""

        def look() -> str | None:
            nonlocal last
            if " >> " not in selector:
                with contextlib.suppress(Error):  # another document is loaded
                    last = self.page.evaluate(_CHANGE, [selector, last])
                    if not re.search(pattern, last):
                        return None
            said = found.inner_text() if found.is_visible() else ""
            return said if re.search(pattern, said) else None

        try:
            text: str = until(look, f"{selector} shows {pattern!r}", secs)
        except pytest.fail.Exception as e:
            said = self.text("body")[:2000]
            pytest.fail(f"{e.msg}\n{self.page.url}\n{self.troubles}\n{said}")
        return text
