"""A user in a real Chromium on the pages of apps, who only reads the screen and presses visible
controls.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from chromium_user import SECS
from pages_user import PagesUser
from supervisor_process import until

_PIXELS = """async ([report, least]) => {
  const canvas = document.querySelector(`canvas[data-report="${report}"]`);
  if (!canvas || !canvas.width || Number(canvas.dataset.frame ?? -1) < least) return null;
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const colours = new Set(new Uint32Array(data.buffer)).size;
  return [Number(canvas.dataset.frame ?? -1), [...digest].join(","), colours, canvas.getAttribute("aria-label")];
}"""


class Picture(NamedTuple):
    """A picture on a canvas. frame: its number from 0. digest: of the pixels. colours: their number.
    label: the text for screen readers.
    """

    frame: int
    digest: str
    colours: int
    label: str


class AppsUser(PagesUser):
    def new(self, title: str, **fields: Any) -> str:
        """Create a simulation of the app with this title and fill in its form. Return its id."""
        self.goto("/apps")
        self.until(".apps", title)
        self.page.get_by_role("button", name=f"New simulation: {title}", exact=True).click()
        self.until("form.values", "Values")
        self.fill(**fields)
        return self.sid

    @property
    def sid(self) -> str:
        return str(self.page.evaluate("() => location.pathname.split('/').at(-1)"))

    def field(self, name: str) -> Any:
        return self.page.locator(f"#field-{name}")

    def fill(self, **fields: Any) -> None:
        for name, value in fields.items():
            place = self.field(name)
            if place.evaluate("e => e.tagName") == "SELECT":
                place.select_option(value)
            else:
                place.fill(str(value))

    def start(self) -> None:
        self.page.get_by_role("button", name="Start", exact=True).click()

    def cancel(self) -> None:
        self.page.get_by_role("button", name="Cancel …").click()
        self.page.get_by_role("button", name="Cancel job").click()

    def until_state(self, word: str, secs: float = SECS) -> None:
        self.until(".page-head .state", f"^{word}$", secs)

    def frames_done(self) -> int:
        found = re.search(r"(\d+) of \d+ frames", self.text(".facts"))
        return int(found[1]) if found else 0

    def picture(self, report: str = "heatAnimation", least: int = -1) -> Picture | None:
        """Return what is drawn, unless its frame is before `least`."""
        said = self.page.evaluate(_PIXELS, [report, least])
        return None if said is None else Picture(*said)

    def until_exact_frame(self, number: int, report: str = "heatAnimation") -> None:
        wanted = f'canvas[data-report="{report}"][data-frame="{number}"]'
        self.page.locator(wanted).wait_for()

    def until_frame(self, least: int, report: str = "heatAnimation", secs: float = SECS) -> Picture:
        def look() -> Picture | None:
            return self.picture(report, least)

        found: Picture = until(look, f"frame {least} or a later one is drawn", secs)
        return found

    def cards(self) -> dict[str, str]:
        """Return the state of each simulation on the page of apps, by id."""
        cards = self.page.locator(".simulation")
        return dict(cards.evaluate_all("cs => cs.map((c) => [c.dataset.sid, c.dataset.state])"))

    def saved(self, click: Any) -> tuple[str, bytes]:
        """Return name and content of the download that a click begins."""
        with self.page.expect_download() as wanted:
            click.click()
        return wanted.value.suggested_filename, Path(wanted.value.path()).read_bytes()
