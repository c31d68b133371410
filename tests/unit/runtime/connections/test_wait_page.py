"""A browser gets a page while no supervisor serves; programs get JSON."""

import pytest

from jobscribe.runtime.connections.wait_page import headers, is_wanted, page

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    "method, accept, status, wanted",
    (
        ("GET", BROWSER, 503, True),
        ("HEAD", BROWSER, 503, True),
        ("POST", BROWSER, 503, False),
        ("GET", BROWSER, 404, False),
        ("GET", "*/*", 503, False),
        ("GET", "application/json", 503, False),
        ("GET", "", 503, False),
    ),
)
def test_only_a_browser_that_loads_a_page_gets_it(
    method: str, accept: str, status: int, wanted: bool
) -> None:
    assert is_wanted(method, accept, status) is wanted


def test_the_page_says_why_and_loads_itself_again() -> None:
    text = page("no supervisor <b> serves").decode()
    assert "No supervisor &lt;b&gt; serves." in text and "<b>" not in text
    assert f'http-equiv="refresh" content="{headers()["Retry-After"]}"' in text
    assert headers()["Cache-Control"] == "no-store"
