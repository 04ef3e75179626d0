"""Only what a rank of the same generation stored under the same key is taken for its value."""

from __future__ import annotations

import pytest

from torchloom.wire.store_values import StoreValues, secret_of_generation

KEY = "loom/3/7.1"
SECRET = bytes.fromhex(secret_of_generation(b"job", "j", 3))


def test_ranks_of_one_generation_read_each_other() -> None:
    one, other = StoreValues(SECRET), StoreValues(SECRET)
    for text in ("COMMIT", "", "failed: ü\n", "a:b:c"):
        assert other.unpack(KEY, one.pack(KEY, text).encode()) == text
    assert other.ignored == 0


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"COMMIT",
        b"\xff" * 80,
        b":" * 65,
        b"0" * 64 + b":COMMIT",
        StoreValues(SECRET).pack(KEY, "COMMIT").encode()[:-1],
        StoreValues(SECRET).pack(KEY, "COMMIT").encode() + b" ",
        StoreValues(SECRET).pack("loom/3/7.2", "COMMIT").encode(),
        StoreValues(bytes.fromhex(secret_of_generation(b"job", "j", 2))).pack(KEY, "COMMIT").encode(),
        StoreValues(bytes.fromhex(secret_of_generation(b"job", "k", 3))).pack(KEY, "COMMIT").encode(),
        StoreValues(SECRET).pack(KEY + "C", "OMMIT").encode(),
        StoreValues(SECRET).pack(KEY, "COMMIT").upper().encode(),
    ],
)
def test_anything_else_is_ignored_and_counted(foreign: bytes) -> None:
    values = StoreValues(SECRET)
    assert values.unpack(KEY, foreign) is None
    assert (values.ignored, values.where) == (1, KEY)


def test_without_a_secret_values_are_plain_and_what_is_no_text_is_ignored() -> None:
    values = StoreValues()
    assert values.unpack(KEY, values.pack(KEY, "COMMIT").encode()) == "COMMIT"
    assert values.unpack(KEY, b"\xff") is None and values.ignored == 1
    assert secret_of_generation(b"", "j", 1) == ""
