import pytest

from jobscribe.cli.debug.message_lines import MessageLines, MessageTooLong


def test_messages_are_assembled_and_one_without_end_is_refused() -> None:
    lines = MessageLines(most_chars=100)
    assert list(lines.messages('{"out": "')) == []
    assert list(lines.messages('é"}\nno json\n[1]\n{"end": 1}\n{"r')) == [{"out": "é"}, {"end": 1}]
    assert list(lines.messages('est": 2}\n' + "[" * 99 + "\n")) == [{"rest": 2}]
    # what is complete counts for nothing
    assert len(list(lines.messages('{"a": 1}\n' * 1000))) == 1000
    with pytest.raises(MessageTooLong, match="without an end of line"):
        for _ in range(3):
            list(lines.messages("x" * 50))
