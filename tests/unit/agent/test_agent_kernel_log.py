"""The kernel's log, from a file in its place: what is new is read, nothing blocks, nothing raises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchloom.agent.observe.kernel_log import KernelLog

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."
PAGE = "NVRM: Xid (PCI:0000:5e:00): 31, pid=812, name=python, MMU Fault"


def add(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def codes(log: KernelLog, pid: int = 1, pci: tuple[str, ...] = ()) -> list[int]:
    return [xid.code for xid in log.of(pid, pci)]


def test_errors_since_the_start_are_given_to_whom_they_concern(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    add(path, "NVRM: Xid (PCI:0000:3b:00): 48, an old one")
    log = KernelLog(path)
    assert codes(log, pci=("0000:3b:00",)) == []
    add(path, "some other line", LOST, PAGE)
    assert codes(log, pci=("0000:3b:00",)) == [79]
    assert codes(log, pid=812) == [31]
    assert codes(log, pid=5, pci=("0000:ff:00",)) == []
    assert codes(log, pid=5) == [79]  # of whom nothing is known: what no pid is said of
    log.close()


def test_a_line_that_comes_in_two_pieces_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    with path.open("a") as file:
        file.write(LOST[:30])
        file.flush()
        assert codes(log) == []
        file.write(LOST[30:] + "\n")
    assert codes(log) == [79]
    log.close()


def test_a_rotated_log_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.touch()
    log = KernelLog(path)
    path.rename(tmp_path / "kern.log.1")
    log.look()
    add(path, LOST)
    assert codes(log) == [79]
    log.close()


def test_a_log_that_is_missing_or_closed_to_us_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "later"
    log = KernelLog(path)
    assert "cannot be read" in log.why and codes(log) == []
    add(path, LOST)
    assert codes(log) == [79] and log.why == ""
    log.close()
    directory = KernelLog(tmp_path)
    directory.look()
    assert codes(directory) == []
    directory.close()


def test_a_pipe_that_nobody_writes_to_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = KernelLog(path)
    assert codes(log) == []
    log.close()


@pytest.mark.parametrize("data", [b"\xff" * 100_000, b"NVRM: Xid (PCI:" * 9_000 + b"\n", b"\n" * 50_000])
def test_garbage_is_no_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    path.write_bytes(data)
    assert codes(log) == []
    log.close()


def test_the_kernels_own_log_can_be_looked_at_or_says_why_not() -> None:
    log = KernelLog(Path("/dev/kmsg"))
    log.look()
    log.look()
    log.close()
