"""Error texts of devices and their communication: pattern, class, blame, meaning, advice. First match counts.

The texts are those of cudaGetErrorString, hipGetErrorString, torch's c10 and c10d, and NCCL. A class that
blames the hardware says in its advice that the same device must not simply be tried again.
"""

from __future__ import annotations

import re

from msgspec import Struct

from torchloom.model.device_faults import Blame, DeviceFault

_ELSEWHERE = "Do not simply start it again on this device: drain it"
BLOCKING = "The stack shows a later call: run once with CUDA_LAUNCH_BLOCKING=1 to see the one that failed."


class Text(Struct, frozen=True):
    pattern: re.Pattern[str]
    kind: str
    blame: Blame
    meaning: str
    advice: str

    @property
    def fault(self) -> DeviceFault:
        return DeviceFault(kind=self.kind, blame=self.blame, sentence=self.meaning, advice=self.advice)


def _text(pattern: str, kind: str, blame: Blame, meaning: str, advice: str) -> Text:
    return Text(re.compile(pattern, re.IGNORECASE), kind, blame, meaning, advice)


OUT_OF_MEMORY = re.compile(
    r"\b(CUDA|HIP|XPU|MPS|NPU) (error: )?out of memory|torch\.OutOfMemoryError"
    r"|CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|cudaErrorMemoryAllocation",
)

TEXTS: tuple[Text, ...] = (
    # -- the hardware -------------------------------------------------------------------------------
    _text(
        r"uncorrectable ECC error|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
        "ecc-error",
        "device",
        "memory of the device gave data that could not be corrected",
        f"{_ELSEWHERE}, reset it (nvidia-smi --gpu-reset), and have it replaced if it comes again.",
    ),
    _text(
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable",
        "nvlink-error",
        "device",
        "a link between GPUs gave data that could not be corrected",
        f"{_ELSEWHERE} and the GPUs it is linked with, and check the NVLink bridge or switch.",
    ),
    _text(
        r"GPU is lost|fallen off the bus|cudaErrorDeviceUninitialized|CUDA_ERROR_DEVICE_UNAVAILABLE_LOST"
        r"|device (has been )?lost\b",
        "device-lost",
        "device",
        "the device has fallen off the bus: the host cannot reach it",
        f"{_ELSEWHERE} and reboot the host, often with a power cycle; check power, temperature and the slot.",
    ),
    _text(
        r"CUDA error: hardware stack error|cudaErrorHardwareStackError",
        "hardware-stack-error",
        "device",
        "the device found an error in its call stack",
        f"{_ELSEWHERE} and reset it; a kernel with too deep a recursion can cause it, too.",
    ),
    # -- the program --------------------------------------------------------------------------------
    _text(
        r"device-side assert triggered|cudaErrorAssert\b|Assertion `[^`]*` failed\.",
        "device-assert",
        "program",
        "a kernel found an input that it cannot work with, mostly an index out of range",
        f"Check labels and indices of embeddings, gathers and losses. {BLOCKING}",
    ),
    _text(
        r"an illegal memory access was encountered|cudaErrorIllegalAddress|misaligned address"
        r"|an illegal instruction was encountered|invalid program counter"
        r"|Memory access fault by GPU node",
        "illegal-address",
        "program",
        "a kernel accessed memory that is not its own",
        f"{BLOCKING} A custom kernel is the first suspect; if it comes on one device only, suspect that one.",
    ),
    _text(
        r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|invalid device function",
        "no-kernel-image",
        "program",
        "torch or an extension was not built for this model of GPU",
        "Install a build of torch, or of the extension, for this GPU's architecture.",
    ),
    _text(
        r"Duplicate GPU detected",
        "duplicate-gpu",
        "program",
        "two ranks use the same GPU",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective.",
    ),
    _text(
        r"Cannot re-initialize CUDA in forked subprocess",
        "cuda-after-fork",
        "program",
        "a forked child uses CUDA, which its parent has initialised",
        "Use multiprocessing_context='spawn' for the DataLoader, and do not use CUDA in its workers.",
    ),
    _text(
        r"ncclInvalidUsage|NCCL error.*invalid usage|ncclInvalidArgument",
        "nccl-usage",
        "program",
        "NCCL was used in a way that it does not allow",
        "Read the line `Last error:` below it; NCCL_DEBUG=WARN shows more.",
    ),
    # -- driver and installation --------------------------------------------------------------------
    _text(
        r"driver version is insufficient for CUDA runtime|NVIDIA driver on your system is too old"
        r"|Driver/library version mismatch|forward compatibility was attempted on non supported HW"
        r"|cudaErrorInsufficientDriver|NVML_ERROR_LIB_RM_VERSION_MISMATCH"
        r"|Failed to initialize NVML: Driver",
        "driver-mismatch",
        "driver",
        "driver and CUDA libraries of this host do not fit together",
        "Update the driver, or reboot after an update of it; or install a torch built for an older CUDA.",
    ),
    _text(
        r"system not yet initialized|cudaErrorSystemNotReady",
        "fabric-manager",
        "driver",
        "the GPUs of this host are not ready: the fabric manager does not run",
        "Start nvidia-fabricmanager of the driver's own version.",
    ),
    _text(
        r"devices? (is|are) busy or unavailable|cudaErrorDevicesUnavailable",
        "device-unavailable",
        "host",
        "the device is in use by another process in exclusive mode, or cannot be used now",
        "Look with nvidia-smi for who uses it, and for its compute mode.",
    ),
    # -- communication ------------------------------------------------------------------------------
    _text(
        r"Watchdog caught collective operation timeout|collective operation timeout: WorkNCCL",
        "collective-timeout",
        "unknown",
        "a collective did not end within the process group's timeout",
        "One rank did not come or a transfer stalled: `loom incident` of the hang before it names the rank; "
        "`loom analyze` reads the dumps that torch wrote.",
    ),
    _text(
        r"Timed out waiting \d+ms for (recv|send) operation",
        "collective-timeout",
        "unknown",
        "a gloo operation did not end within the process group's timeout",
        "One rank did not come or a transfer stalled: `loom incident` of the hang before it names the rank.",
    ),
    _text(
        r"ncclRemoteError|remote process exited or there was a network error|NET/IB : Got completion .*error",
        "nccl-remote",
        "network",
        "NCCL lost a peer, or the network between them failed",
        "If another rank died first, that is the cause. If none did, check the network: `loom probe JOB`, "
        "link counters, and NCCL_DEBUG=WARN.",
    ),
    _text(
        r"ncclSystemError|NCCL error.*unhandled system error",
        "nccl-system",
        "host",
        "a call of NCCL to the system failed: a socket, shared memory, or pinned memory",
        "Read the line `Last error:`; common causes are a small /dev/shm, a low `ulimit -l`, and a wrong "
        "NCCL_SOCKET_IFNAME.",
    ),
    _text(
        r"ncclUnhandledCudaError|NCCL error.*unhandled cuda error",
        "nccl-cuda",
        "unknown",
        "a call of NCCL to CUDA failed",
        "Read the line `Last error:`; an earlier error of the device or too little memory are common causes.",
    ),
    _text(
        r"ncclInternalError|NCCL error.*internal error",
        "nccl-internal",
        "unknown",
        "NCCL failed inside",
        "Run with NCCL_DEBUG=WARN; if another rank died first, that is the cause.",
    ),
    # -- memory of the host -------------------------------------------------------------------------
    _text(
        r"DefaultCPUAllocator: (can't|not enough) ?(allocate )?memory|std::bad_alloc|Cannot allocate memory",
        "host-out-of-memory",
        "host",
        "memory of the host ran out",
        "Use fewer data-loader workers or less prefetching, or raise the memory limit of the job.",
    ),
    _text(
        r"DataLoader worker .*(Bus error|killed by signal: Bus)|unable to allocate shared memory",
        "shared-memory-full",
        "host",
        "shared memory of the host ran out",
        "Raise the size of /dev/shm (docker: --shm-size), or use fewer data-loader workers.",
    ),
    # -- the rest -----------------------------------------------------------------------------------
    _text(
        r"unspecified launch failure|cudaErrorLaunchFailure",
        "launch-failure",
        "unknown",
        "a kernel failed, and the device does not say why",
        f"{BLOCKING} If the same device fails again, suspect it.",
    ),
    _text(
        r"\b(CUDA|HIP) error: ",
        "device-error",
        "unknown",
        "the device reported an error",
        f"{BLOCKING} If the same device fails again, suspect it.",
    ),
)
