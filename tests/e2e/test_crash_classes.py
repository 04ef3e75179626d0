"""A worker that dies with a text of a device: its incident has the class, whom it points at, and advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stack import Stack, wait_until

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 "
    "GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in use."
)
WATCHDOG = (
    "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, "
    "NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


def incident(stack: Stack, work: Path, text: str, how: str = "raise") -> tuple[dict[str, Any], str]:
    (work / "text").write_text(text)
    job = stack.submit("device_error.py", str(work / "text"), how, flags=("--max-restarts", "0"))
    stack.wait_state(job, "failed")
    found = wait_until(lambda: stack.json("incidents", job), "an incident")[0]
    return found, stack.loom("incident", found["id"]).stdout


@pytest.mark.parametrize(
    ("text", "how", "kind", "blame"),
    [(OOM, "raise", "device-out-of-memory", "program"), (WATCHDOG, "abort", "collective-timeout", "unknown")],
)
def test_a_text_becomes_a_class_with_advice(
    stack: Stack, tmp_path: Path, text: str, how: str, kind: str, blame: str
) -> None:
    found, shown = incident(stack, tmp_path, text, how)
    assert (found["culprit"], found["fault"]["kind"], found["fault"]["blame"]) == (1, kind, blame)
    assert (
        f"cause      {kind} (blame: {blame})" in shown and f"advice     {found['fault']['advice']}" in shown
    )


def test_the_drivers_error_in_the_kernels_log_blames_the_device(stack: Stack, tmp_path: Path) -> None:
    """A file stands in for the kernel's log."""
    with Path(stack.env["LOOM_KERNEL_LOG"]).open("a") as log:
        log.write(
            "NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE) has been detected\n"
        )
    found, _ = incident(stack, tmp_path, ECC)
    fault = found["fault"]
    assert (fault["kind"], fault["blame"]) == ("xid-48", "device")
    assert "could not be corrected" in fault["sentence"]
    assert "must not use the same device again" in fault["advice"]
