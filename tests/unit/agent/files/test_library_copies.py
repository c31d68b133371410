"""Assembly of library files from parts: the file is complete, or it does not exist."""

from pathlib import Path

import pytest

from jobscribe.agent.files.library_copies import store_piece
from jobscribe.protocol.errors import Refusal

AT = 1_700_000_000_000_000_001


def test_it_has_its_name_with_the_last_piece_and_the_old_one_is_gone_with_the_first(
    tmp_path: Path,
) -> None:
    lib = tmp_path / "new" / "lib"
    store_piece(str(lib), "a b.dat", 0, b"old", 3, AT)
    assert (lib / "a b.dat").read_bytes() == b"old" and (lib / "a b.dat").stat().st_mtime_ns == AT
    assert store_piece(str(lib), "a b.dat", 0, b"on", 4, AT + 5).size == 2
    assert not (lib / "a b.dat").exists(), "an old one is not taken for the new one"
    piece = store_piece(str(lib), "a b.dat", 2, b"e!", 4, AT + 5)
    assert (piece.data, piece.size, piece.mtime_ns) == (b"", 4, AT + 5)
    assert (lib / "a b.dat").read_bytes() == b"one!" and [p.name for p in lib.iterdir()] == [
        "a b.dat"
    ]
    store_piece(str(lib), "empty", 0, b"", 0, AT)
    assert (lib / "empty").read_bytes() == b""


def test_a_piece_out_of_order_is_refused(tmp_path: Path) -> None:
    store_piece(str(tmp_path), "x", 0, b"12", 6, AT)
    with pytest.raises(Refusal, match="sent twice, or a piece of it is missing"):
        store_piece(str(tmp_path), "x", 4, b"56", 6, AT)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".jobscribe", "nul\0"])
def test_what_is_no_name_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refusal, match="is not a valid library file name"):
        store_piece(str(tmp_path), name, 0, b"1", 1, AT)


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in ("x", ".copy-x"):
        (lib / name).symlink_to(other)
    store_piece(str(lib), "x", 0, b"new", 3, AT)
    assert (
        other.read_bytes() == b"mine"
        and not (lib / "x").is_symlink()
        and (lib / "x").read_bytes() == b"new"
    )
    assert (lib / "x").stat().st_mode & 0o777 == 0o600
