"""Memory of tensors that a restore makes: it comes in large pages, also around the allocator's own notes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MADE = """
import ctypes, re, torch
from torchloom.checkpoint.state import region
region._PATIENCE_S = 60.0  # this host may be busy
tensors = [torch.empty(1024, 1024) for _ in range(24)]
region.large_pages(tensors)
for tensor in tensors:
    tensor.fill_(1)
assert all(bool((tensor == 1).all()) for tensor in tensors)
inside, large = False, 0
for line in open("/proc/self/smaps"):
    if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
        first, last = (int(one, 16) for one in found.groups())
        inside = any(first <= tensor.data_ptr() < last for tensor in tensors)
    elif inside and line.startswith("AnonHugePages:"):
        large += int(line.split()[1]) << 10
collapses = ctypes.CDLL(None).madvise(ctypes.c_void_p(0), ctypes.c_size_t(0), 25) == 0
print("large", large / sum(tensor.numel() * 4 for tensor in tensors), "collapses", collapses)
"""


def test_nearly_all_of_it_is_in_large_pages() -> None:
    known = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not known.exists() or "[never]" in known.read_text():
        pytest.skip("this host has no large pages")
    # A process of its own, in which each tensor has a mapping, as in one that has just begun.
    done = subprocess.run(
        [sys.executable, "-c", MADE],
        env={"MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"large ([0-9.]+) collapses (\w+)", done.stdout)
    assert found is not None, done.stdout
    if found[2] != "True":
        pytest.skip("this kernel does not put large pages together on request")
    assert float(found[1]) > 0.8  # without that it is half
