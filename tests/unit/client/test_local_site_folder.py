"""The temporary folder of a private supervisor."""

import tempfile

import pytest

from jobscribe.client.local_site import site


def test_a_folder_with_a_long_path_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert site._base() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/" + "l" * 100)
    assert site._base() == "/tmp"


def test_without_a_short_folder_the_refusal_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "l" * 100)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(site.ClientError, match="more than 57 bytes") as e:
        site._base()
    assert "TMPDIR" in e.value.advice
