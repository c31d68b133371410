"""Takes the picture of the web page that README and docs show: `.venv/bin/python
etc/docs/screenshot.py`.

Starts a real supervisor in a temporary root and runs the app `heat` in Chromium
(etc/engines/chromium.sh installs it).
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SOURCE = Path(__file__).resolve().parents[2]
PICTURE = SOURCE / "docs/images/page.png"
#: width and height of the browser window, pixels
WINDOW = {"width": 1200, "height": 1130}
#: Field values of the run, and the frame at which the picture is taken.
FIELDS, FRAME = {"steps": 4, "frames": 60, "hotSpots": 9, "paceSecs": 0.15}, 24

sys.path[:0] = [str(SOURCE / "tests/web/support"), str(SOURCE / "tests/integration/support")]

from chromium_user import CHROMIUM, FLAGS, Person  # noqa: E402, needs the folders above


def main() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("JOBSCRIBE_")}
    with tempfile.TemporaryDirectory(prefix="jobscribe-picture-") as root:
        command = [sys.executable, "-m", "jobscribe.cli", "up", "--root", root, "--port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        ) as up:
            try:
                assert up.stdout is not None
                found = re.search(r"http://\S+", up.stdout.readline())
                assert found, "the supervisor printed no address"
                with sync_playwright() as playwright:
                    take(
                        playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS)),
                        found[0] + "/",
                    )
            finally:
                up.terminate()


def take(browser: Browser, url: str) -> None:
    person = Person(browser, url, "ann", viewport=WINDOW).sign_in()
    person.start("myapp")
    person.until_state("completed")
    person.start("heat", **FIELDS)
    person.until_frame(FRAME)
    PICTURE.parent.mkdir(exist_ok=True)
    person.page.screenshot(path=PICTURE)
    person.until_state("completed")
    browser.close()


if __name__ == "__main__":
    main()
