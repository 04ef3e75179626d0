"""What a quota costs a process is read from its cgroup and those above it, in both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchloom.agent.observe import cgroups


def tree(root: Path, **stats: str) -> None:
    for path, text in stats.items():
        group = root / path.replace("__", "/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.stat").write_text(text)


def in_group(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    read = cgroups._read
    monkeypatch.setattr(
        cgroups, "_read", lambda path: lines.encode() if path.startswith("/proc/") else read(path)
    )


def test_the_first_version_counts_in_nanoseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_group(monkeypatch, "4:memory:/m\n1:cpu,cpuacct:/box/worker\n0::/\n")
    tree(tmp_path, cpu__box__worker="nr_throttled 3\nthrottled_time 500\n", cpu__box="throttled_time 70\n")
    assert cgroups.throttled(1, tmp_path) == (str(tmp_path / "cpu/box/worker"), 570)


def test_the_second_counts_in_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_group(monkeypatch, "0::/pod/worker\n")
    tree(tmp_path, pod__worker="usage_usec 9\nthrottled_usec 4\n", pod="throttled_usec 2\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000\n")
    assert cgroups.throttled(1, tmp_path) == (str(tmp_path / "pod/worker"), 6000)


def test_a_process_that_is_gone_has_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_group(monkeypatch, "")
    assert cgroups.throttled(1, tmp_path) is None


def test_the_kernel_lists_this_process_in_the_group_that_is_found_for_it() -> None:
    found = cgroups.cpu_group(os.getpid())
    try:
        listed = "" if found is None else (found[0] / "cgroup.procs").read_text()
    except OSError as error:
        pytest.skip(f"this host does not show the group: {error}")
    assert found is not None and str(os.getpid()) in listed.split()
    told = cgroups.throttled(os.getpid())
    assert told is not None and told[0] == str(found[0])


def test_what_another_group_counted_is_not_this_ones() -> None:
    """A worker that is put into a group under a quota, and out of it again."""
    seen = [(10, "free", 5_000), (20, "free", 5_000), (30, "bound", 1_000_000), (50, "bound", 3_000_000)]
    assert cgroups.throttled_per_step(seen[:2]) == 0
    assert cgroups.throttled_per_step(seen[:3]) == 0
    assert cgroups.throttled_per_step(seen) == 100_000
    assert cgroups.throttled_per_step([*seen, (60, "free", 5_000)]) == 0
    assert cgroups.throttled_per_step([]) == 0


@pytest.mark.parametrize(
    ("lines", "file"),
    [("4:memory:/m/w\n0::/\n", "memory/m/w/memory.oom_control"), ("0::/pod/w\n", "pod/w/memory.events")],
)
def test_what_the_oom_killer_ended_is_read_in_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, file: str
) -> None:
    in_group(monkeypatch, lines)
    counts = tmp_path / file
    assert cgroups.oom_kills(1, tmp_path) is None and not cgroups.killed_since(())
    counts.parent.mkdir(parents=True)
    counts.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    before = cgroups.oom_kills(1, tmp_path)
    assert before == (str(counts), 2) and not cgroups.killed_since([before])
    counts.write_text("oom_kill 3\n")
    assert cgroups.killed_since([before])
    late = cgroups.oom_kills(1, tmp_path)
    assert late is not None and cgroups.killed_since([before, late]), "a look between the kill and the end"
    assert not cgroups.killed_since([late])
