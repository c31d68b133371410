"""A standby refuses requests while none serves: with a page for browsers, and JSON for programs."""

from typing import Any

import msgspec
import tornado.httpclient
import tornado.testing

from jobscribe.service.settings.loader import load
from jobscribe.supervisor.process.connection_limits import ConnectionGuard
from jobscribe.supervisor.process.counters import Counters
from jobscribe.supervisor.standby.answers import server


async def test_a_browser_gets_a_page_and_a_program_json() -> None:
    nothing: Any = ()
    counters = Counters()
    guard = ConnectionGuard(load({}, env={}).limits, counters, lambda *line: None)  # type: ignore[arg-type]
    standby = server(guard, nothing, dict, lambda: "it stands by", counters.add)
    bound, port = tornado.testing.bind_unused_port()
    standby.add_sockets([bound])
    client = tornado.httpclient.AsyncHTTPClient(force_instance=True)
    url = f"http://127.0.0.1:{port}/jobs"
    try:
        shown = await client.fetch(
            url, headers={"Accept": "text/html,*/*;q=0.8"}, raise_error=False
        )
        assert (shown.code, shown.headers["Retry-After"]) == (503, "2")
        assert shown.headers["Content-Type"] == "text/html; charset=utf-8"
        assert shown.headers.get_list("Cache-Control") == ["no-store"]
        assert b"No supervisor serves the site at this address: it stands by." in shown.body
        said = await client.fetch(url, headers={"Accept": "*/*"}, raise_error=False)
        assert (said.code, said.headers["Retry-After"]) == (503, "1")
        assert msgspec.json.decode(said.body)["code"] == "noSupervisor"
        assert counters.all()["refused.noSupervisor"] == 2
    finally:
        client.close()
        standby.stop()
        await standby.close_all_connections()
