"""The relay between an IDE and a stopped process."""

from typing import Any

from jobscribe.cli.debug.ide import _pass_on


class Ends:
    """Stands for a client whose session is over."""

    def debug_io(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return {"data": "", "end": True, "reason": "the process continued"}


def test_a_process_that_continues_before_the_ide_is_there_ends_the_session_with_its_reason() -> (
    None
):
    nothing: Any = None
    client: Any = Ends()
    assert _pass_on(nothing, nothing, client, "id") == "the process continued"
