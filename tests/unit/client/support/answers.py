"""Answers to requests of clients, without HTTP."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobscribe.client.api.requests import Call
from jobscribe.client.transport.connection import Connection
from jobscribe.client.transport.messages import Headers, Reply


def answer_calls(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Call], Any]) -> None:
    """Make each `Client` get the JSON value of `answer` for each call."""

    def call(self: Connection, call: Call) -> Reply:
        return Reply(Headers([]), json.dumps(answer(call)).encode())

    monkeypatch.setattr(Connection, "call", call)
