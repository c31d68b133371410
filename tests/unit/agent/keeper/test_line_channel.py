"""The keeper's end of the connection to its agent."""

import socket

from jobscribe.agent.keeper.loop.event_loop import Loop
from jobscribe.agent.keeper.loop.line_channel import Channel


def test_last_words_are_read_when_a_message_cannot_be_sent_any_more() -> None:
    """An agent that cannot start says why and ends, perhaps before the keeper sends its hello."""
    ours, theirs = socket.socketpair()
    messages, ends = [], []
    channel = Channel(ours, Loop(), messages.append, lambda: ends.append(True), lambda: None)
    theirs.sendall(b'{"do": "failed", "why": "no memory"}\n')
    theirs.close()
    channel.send({"is": "hello"})
    assert messages == [{"do": "failed", "why": "no memory"}]
    assert (ends, channel.closed) == ([True], True)
