"""What an agent can read here: stacks and counters of workers, cgroups, GPUs. Cheap, without torch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from torchloom.agent.health import known_gpus
from torchloom.agent.observe import cgroups, kernel, stacks
from torchloom.agent.observe.kernel_files import read_small
from torchloom.cli.doctor.check import Check
from torchloom.compiled import compiler
from torchloom.core.devices import health_class
from torchloom.model.devices import DeviceReading
from torchloom.probe import native

_DRIVER = Path("/proc/driver/nvidia/version")
_LISTED = Path("/proc/driver/nvidia/gpus")
_ID, _MOST_ILL, _TRIES = 12, 4, 3
_OTHERS = {"/dev/kfd": "ROCm", "/dev/accel": "an accelerator", "/dev/davinci0": "Ascend"}


def checks() -> list[Check]:
    return [recorder(), stack_reading(), process_counters(), groups(), *gpus(), kernel_log()]


def recorder() -> Check:
    library = native.find()
    if library is not None:
        return Check("recorder", "ok", f"native ({library.name}): every collective, its end and its waits")
    unseen = "collectives are sampled in Python without their ends, so few hangs name a rank"
    if compiler() is None:
        fix = "Install g++ or clang++, then run `python -m torchloom.probe.native`."
        return Check("recorder", "limited", "not native, and there is no C++ compiler", unseen, fix)
    fix = (
        "Run `python -m torchloom.probe.native`. `loom run` does it before its first job, a service beside "
        "its first jobs, for those after them."
    )
    return Check("recorder", "limited", "not native: it was not built for this torch", unseen, fix)


def stack_reading() -> Check:
    """py-spy reads us, which needs the same right as reading a worker: neither is its child."""
    name, unseen = "stacks", "verdicts name no line of code, and a frozen process is never certain"
    program = stacks.program()
    if not program:
        return Check(name, "limited", "there is no py-spy", unseen, "Run `pip install py-spy`.")
    # Its limit is short; on a busy host one answer that comes too late says nothing about rights.
    if any(asyncio.run(stacks.read(os.getpid())) is not None for _ in range(_TRIES)):
        return Check(name, "ok", "py-spy may read other processes")
    scope = read_small("/proc/sys/kernel/yama/ptrace_scope").decode().strip()
    if scope not in ("", "0"):
        fix = "Run `sysctl kernel.yama.ptrace_scope=0`, or give the container CAP_SYS_PTRACE."
        return Check(name, "limited", f"py-spy may not read workers (ptrace_scope is {scope})", unseen, fix)
    fix = "Give the container CAP_SYS_PTRACE (`docker run --cap-add SYS_PTRACE`)."
    return Check(name, "limited", "py-spy cannot read another process", unseen, fix)


def process_counters() -> Check:
    name, pid = "process counters", os.getpid()
    counted = kernel.counts(pid)
    missing = []
    if counted is None or not counted.threads:
        missing.append("/proc/PID/schedstat: CPU time and waits for a core")
    if not read_small(f"/proc/{pid}/syscall"):
        missing.append("/proc/PID/syscall: what a process waits for")
    if not read_small(f"/proc/{pid}/io"):
        missing.append("/proc/PID/io: reading and writing as a sign of life")
    if missing:
        fix = "Use a kernel or container that shows them."
        return Check(name, "limited", f"not readable: {'; '.join(missing)}", fix=fix)
    return Check(name, "ok", "CPU time, waits for a core, I/O and system calls of workers")


def groups() -> Check:
    pid = os.getpid()
    quota, memory = cgroups.cpu_group(pid), cgroups.oom_kills(pid)
    missing = []
    if quota is None or not read_small(f"{quota[0]}/cpu.stat"):
        missing.append("CPU quotas")
    if memory is None:
        missing.append("OOM kills (reported as a SIGKILL)")
    if missing:
        fix = "Mount /sys/fs/cgroup of the container's own group, read-only is enough."
        unseen = f"torchloom does not see {' and '.join(missing)}"
        return Check("cgroups", "limited", "counters of this cgroup cannot be read", unseen, fix)
    version = 2 if quota is not None and quota[1] == 2 else 1
    return Check("cgroups", "ok", f"version {version}: CPU quotas and OOM kills are seen")


def gpus() -> list[Check]:
    name = "GPUs"
    found, why = known_gpus.readings_or_why()
    driver = _driver()
    if found:
        names = sorted({gpu.name for gpu in found})
        text = f"{len(found)} by NVML, driver {driver or 'unknown'}: {', '.join(names)}"
        return [Check(name, "ok", text), gpu_health(found)]
    if driver:
        unseen = "torchloom shows no GPUs and not their health"
        return [Check(name, "limited", f"driver {driver}, but NVML: {why}", unseen, "Check `nvidia-smi`.")]
    other = next((words for path, words in _OTHERS.items() if Path(path).exists()), "")
    if other:
        text = f"{other}: jobs are watched on it as on any device of torch, its health is not read"
        return [Check(name, "note", text)]
    return [Check(name, "note", "no GPU, so jobs use CPU cores")]


def gpu_health(found: Sequence[DeviceReading]) -> Check:
    """What NVML says against single GPUs now; what must last before it counts is not seen in one look."""
    name = "health of GPUs"
    ill = [
        (f"GPU {reading.index} ({reading.device[:_ID]}…): {judged.why}", judged.level)
        for reading in found
        if (judged := health_class.judge(health_class.DeviceMemory(), reading, 0.0)) is not None
        and judged.level != "ok"
    ]
    listed = len(list(_LISTED.iterdir())) if _LISTED.is_dir() else 0
    whole = len({reading.index for reading in found})
    if listed > whole:
        ill.append((f"the kernel lists {listed} GPUs and NVML {whole}", "failed"))
    if not ill:
        return Check(name, "ok", "NVML reports nothing against any of them")
    said = "; ".join(text for text, _ in ill[:_MOST_ILL])
    more = f" and {len(ill) - _MOST_ILL} more" if len(ill) > _MOST_ILL else ""
    failed = any(level == "failed" for _, level in ill)
    unseen = "no worker is placed on a GPU that failed" if failed else ""
    fix = "Drain and reset it (`nvidia-smi -r`); if that does not help, replace it."
    return Check(name, "limited", f"{said}{more}", unseen, fix)


def kernel_log() -> Check:
    name = "kernel log"
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        text = f"/dev/kmsg cannot be read: {error.strerror}"
        if _driver():
            fix = "Run the agent as root, or set `sysctl kernel.dmesg_restrict=0`."
            return Check(name, "limited", text, "XID errors of GPUs are seen by NVML only", fix)
        return Check(name, "note", f"{text}; without a GPU it is not needed")
    return Check(name, "ok", "XID errors of GPUs can be read")


def _driver() -> str:
    """`535.129.03`; empty without an NVIDIA driver."""
    words = read_small(str(_DRIVER)).decode("utf-8", "replace").split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
