# ruff: noqa: E501 – texts as programs print them
"""Texts that programs really die with, and lines that drivers really write, become classes with advice.

The texts are the forms of torch's C++ sources, of NCCL and of public bug reports, with other numbers.
"""

from __future__ import annotations

import pytest

from torchloom.core.device_faults.classify import classify, fault_of
from torchloom.core.device_faults.xids import MEANINGS, meaning_of, read_line, short_pci
from torchloom.model.device_faults import Blame, DeviceFault, Xid
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.incidents import ExitReport, Incident
from torchloom.model.worker import EndRecord, Exit

HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
    "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to "
    "enable device-side assertions.\n"
)
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.23 GiB is "
    "free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated memory 75.10 "
    "GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated."
)
WATCHDOG = (
    "[rank1]:[E1104 13:02:03.123456789 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran "
    "for 600029 milliseconds before timing out."
)


def exit_of(
    exception: str = "", message: str = "", *, xids: tuple[Xid, ...] = (), log: tuple[str, ...] = ()
) -> ExitReport:
    end = EndRecord(how="exception", code=1, exception=exception, message=message) if exception else None
    found = Exit(1, None, "spawner") if end else Exit(None, 6, "spawner")
    return ExitReport(rank=1, node="n", exit=found, at_ns=1, steps=5, end=end, xids=xids, log_tail=log)


def said(exception: str, message: str) -> DeviceFault:
    fault = classify(exit_of(exception, message))
    assert fault is not None, message
    assert fault.sentence and fault.advice.endswith(".")
    return fault


@pytest.mark.parametrize(
    ("exception", "message", "kind", "blame"),
    [
        ("torch.OutOfMemoryError", OOM, "device-out-of-memory", "program"),
        ("torch.OutOfMemoryError", OOM.replace("CUDA", "HIP"), "device-out-of-memory", "program"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         "device-out-of-memory", "program"),
        ("torch.AcceleratorError", f"CUDA error: device-side assert triggered{HINT}", "device-assert", "program"),
        ("RuntimeError", f"CUDA error: an illegal memory access was encountered{HINT}", "illegal-address", "program"),
        ("RuntimeError", f"CUDA error: misaligned address{HINT}", "illegal-address", "program"),
        ("RuntimeError", f"CUDA error: uncorrectable ECC error encountered{HINT}", "ecc-error", "device"),
        ("RuntimeError", "CUDA error: uncorrectable NVLink error detected during the execution", "nvlink-error",
         "device"),
        ("pynvml.NVMLError_GpuIsLost", "GPU is lost", "device-lost", "device"),
        ("RuntimeError", "CUDA error: unspecified launch failure", "launch-failure", "unknown"),
        ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", "no-kernel-image",
         "program"),
        ("RuntimeError", "CUDA error: all CUDA-capable devices are busy or unavailable", "device-unavailable", "host"),
        ("RuntimeError", "The NVIDIA driver on your system is too old (found version 11040).", "driver-mismatch",
         "driver"),
        ("RuntimeError", "CUDA driver version is insufficient for CUDA runtime version", "driver-mismatch", "driver"),
        ("RuntimeError", "Error 802: system not yet initialized", "fabric-manager", "driver"),
        ("torch.distributed.DistBackendError",
         "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
         "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a "
         "remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 172.16.0.4<33759> "
         "failed : Connection reset by peer", "nccl-remote", "network"),
        ("torch.distributed.DistBackendError",
         "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL "
         "version 2.20.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
         "error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-Zx (size 9637888)", "nccl-system",
         "host"),
        ("torch.distributed.DistBackendError",
         "NCCL error in: NCCLUtils.hpp:317, unhandled cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to "
         "CUDA function failed.\nLast error:\nCuda failure 'out of memory'", "nccl-cuda", "unknown"),
        ("torch.distributed.DistBackendError",
         "NCCL error in: NCCLUtils.hpp:317, invalid usage (run with NCCL_DEBUG=WARN for details)\nncclInvalidUsage: This "
         "usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both "
         "on CUDA device 50000", "duplicate-gpu", "program"),
        ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 60000ms for "
         "recv operation to complete", "collective-timeout", "unknown"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)", "host-out-of-memory", "host"),
        ("RuntimeError", "DataLoader worker (pid 812) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory.", "shared-memory-full", "host"),
        ("RuntimeError", "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
         "the 'spawn' start method", "cuda-after-fork", "program"),
    ],
)  # fmt: skip
def test_each_text_has_its_class(exception: str, message: str, kind: str, blame: Blame) -> None:
    fault = said(exception, message)
    assert (fault.kind, fault.blame) == (kind, blame)


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("ValueError", "loss is nan"),
        ("KeyError", "'device'"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x8 and 9x2)"),
        ("AssertionError", "a memory test failed"),
        ("RuntimeError", "Connection closed by peer [127.0.0.1]:31465"),
    ],
)
def test_errors_of_the_script_have_none(exception: str, message: str) -> None:
    assert classify(exit_of(exception, message)) is None


def test_out_of_memory_says_whose_how_much_and_what_else_was_there() -> None:
    fault = said("torch.OutOfMemoryError", OOM)
    assert fault.sentence == (
        "GPU 3 ran out of memory: 2.00 GiB were asked for and 1.23 GiB of 79.15 GiB were free; "
        "this process held 77.90 GiB"
    )
    assert "smaller batch" in fault.advice
    shared = OOM.replace("77.90", "20.00").replace(
        "Including", "Process 4711 has 57.92 GiB memory in use. Including"
    )
    fault = said("torch.OutOfMemoryError", shared)
    assert "process 4711 held 57.92 GiB" in fault.sentence
    assert fault.blame == "host" and "end process 4711" in fault.advice
    fragmented = OOM.replace("1.50 GiB is reserved", "9.50 GiB is reserved")
    assert "expandable_segments" in said("torch.OutOfMemoryError", fragmented).advice
    old = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.50 GiB already "
        "allocated; 12.75 MiB free; 9.70 GiB reserved in total by PyTorch)"
    )
    assert (
        "GPU 0 ran out of memory: 20.00 MiB were asked for and 12.75 MiB of 10.76 GiB"
        in said("RuntimeError", old).sentence
    )
    assert said("RuntimeError", "CUDA error: out of memory").sentence == "the device ran out of memory"


def test_a_process_that_dies_in_cpp_is_read_from_its_log() -> None:
    frames = tuple(f"frame #{n}: <unknown function> + 0x1 (0x7f in libc10.so)" for n in range(10))
    fault = classify(exit_of(log=(WATCHDOG, *frames)))
    assert fault is not None and fault.kind == "collective-timeout"
    assert "(allreduce #412)" in fault.sentence and "loom analyze" in fault.advice
    last = said(
        "torch.distributed.DistBackendError", "ncclRemoteError: A call failed.\nLast error:\nNET/OFI: RC 113"
    )
    assert last.sentence.endswith("(NET/OFI: RC 113)")


@pytest.mark.parametrize(
    ("line", "code", "pci", "pid"),
    [
        ("6,912,1234567,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         79, "0000:3b:00", 0),
        ("[ 12.3] NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to "
         "activate.", 63, "0000:10:1c", 1896),
        ("May 13 17:19:01 h kernel: NVRM: Xid (PCI:0000:08:00): 31, Ch 0000003b, intr 10000000. MMU Fault: ENGINE "
         "GRAPHICS HUBCLIENT_SCC faulted @ 0x0_04687000.", 31, "0000:08:00", 0),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00", 0),
        ("NVRM: Xid (PCI:00000008:01:00): 119, pid=77, name=python, Timeout after 6s of waiting for RPC response from "
         "GPU0 GSP!", 119, "0008:01:00", 77),
    ],
)  # fmt: skip
def test_lines_of_the_kernel_are_read(line: str, code: int, pci: str, pid: int) -> None:
    xid = read_line(line, 9)
    assert xid is not None
    assert (xid.code, xid.pci, xid.pid, xid.at_ns) == (code, pci, pid, 9)


@pytest.mark.parametrize(
    "line", ["", "NVRM: Xid", "NVRM: GPU at PCI:0000:03:00: GPU-b850", "Xid (PCI:x): 79", "\x00" * 99]
)
def test_other_lines_are_not(line: str) -> None:
    assert read_line(line) is None


def test_the_bus_address_of_nvml_and_of_the_kernel_are_one() -> None:
    assert short_pci("00000000:3B:00.0") == short_pci("0000:3b:00") == "0000:3b:00"


def test_the_table_has_the_codes_that_matter() -> None:
    wanted = {
        13,
        31,
        32,
        38,
        43,
        45,
        48,
        *range(61, 65),
        68,
        69,
        74,
        79,
        92,
        94,
        95,
        119,
        120,
        121,
        122,
        123,
        140,
        143,
        *range(144, 151),
        154,
        158,
        171,
        172,
    }
    assert wanted <= MEANINGS.keys()
    assert {meaning_of(code).blame for code in (13, 31, 43)} == {"program"}
    assert {meaning_of(code).blame for code in (48, 64, 74, 79, 92, 94, 95, 140)} == {"device"}
    assert {meaning_of(code).blame for code in (38, 119, 120)} == {"driver"}
    assert meaning_of(9999).blame == "unknown"
    for one in MEANINGS.values():
        assert one.advice.endswith(".") and not one.meaning.endswith(".")


def test_the_driver_counts_more_than_the_program_where_it_blames_the_hardware() -> None:
    lost = Xid(code=79, pci="0000:3b:00")
    cleanup = Xid(code=45, pci="0000:3b:00")
    fault = classify(exit_of("RuntimeError", "CUDA error: unspecified launch failure", xids=(cleanup, lost)))
    assert fault is not None and (fault.kind, fault.blame) == ("xid-79", "device")
    assert "GPU at 0000:3b:00" in fault.sentence and "a kernel failed" in fault.sentence
    assert "must not use the same device again" in fault.advice

    fault = classify(exit_of("RuntimeError", "CUDA error: unspecified launch failure", xids=(Xid(code=31),)))
    assert fault is not None and (fault.kind, fault.blame) == ("launch-failure", "program")
    assert "Xid 31" in fault.sentence
    fault = classify(exit_of(xids=(cleanup,)))
    assert fault is not None and (fault.kind, fault.blame) == ("xid-45", "unknown")


def test_the_kernels_oom_killer_is_a_class_too() -> None:
    killed = ExitReport(rank=0, node="n", exit=Exit(None, 9, "spawner", out_of_memory=True), at_ns=1, steps=1)
    fault = classify(killed)
    assert fault is not None and (fault.kind, fault.blame) == ("host-out-of-memory", "host")


def test_only_the_culprit_of_an_incident_is_classified() -> None:
    report = exit_of("RuntimeError", "CUDA error: uncorrectable ECC error encountered")
    incident = Incident(id="j.1", job="j", generation=1, kind="crash", exits=[report])
    assert fault_of(incident) is None
    incident.culprit = 1
    assert fault_of(incident) == classify(report)


def test_what_was_corrected_explains_no_crash_that_something_else_explains() -> None:
    """By the catalogue 92 and 121 ask for nothing at once: the program continues."""
    corrected = Xid(code=92, pci="0000:3b:00")
    fault = classify(exit_of("RuntimeError", "CUDA error: device-side assert triggered", xids=(corrected,)))
    assert fault is not None and fault.kind == "device-assert"
    alone = classify(exit_of(xids=(corrected,)))
    assert alone is not None and alone.kind == "xid-92" and "must not use" not in alone.advice


def test_of_a_hang_the_driver_says_whose_fault_it_is() -> None:
    finding = Finding(kind="hang", ranks=(1,), sentence="rank 1 has not entered", confidence=0.9)
    seen = (
        RankEvidence(rank=0, node="n", xids=(Xid(code=79, pci="0000:1a:00"),)),
        RankEvidence(rank=1, node="n", xids=(Xid(code=45), Xid(code=119, pci="0000:3b:00"))),
    )
    incident = Incident(id="j.1", job="j", generation=1, kind="hang", finding=finding, evidence=seen)
    fault = fault_of(incident)
    assert fault is not None and (fault.kind, fault.blame) == ("xid-119", "driver"), "of the rank to blame"
    assert "0000:3b:00" in fault.sentence
