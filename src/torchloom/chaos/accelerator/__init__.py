"""A simulated accelerator, "loomsim": what torchloom sees of a device can be shown where there is none.

One device per process, of type PrivateUse1, that runs what it is given later and in order, on threads of its
own: the host runs ahead, collectives are enqueued and end when the device gets to them, `wait()` blocks the
stream and not the host. `load()` makes it known to torch, with a c10d backend of the same name; the functions
below put faults in. The C++ half is in device.h (queues, events, faults), guard.h (what torch asks of a
device), kernels.h (operators) and backend.h (collectives, over gloo). It needs a C++ compiler and Python's
headers.

    from torchloom.chaos import accelerator
    accelerator.load()
    dist.init_process_group("loomsim")
    x = torch.ones(4, device="loomsim")
    dist.all_reduce(x)          # returns before it is done
    accelerator.busy(20)        # 20 ms of work on the device
"""

from __future__ import annotations

import ctypes
import os
import types
from pathlib import Path
from typing import Any

from torchloom import compiled

NAME = "loomsim"
_HERE = Path(__file__).parent
LIBRARY = compiled.Library(
    NAME,
    tuple(_HERE / name for name in ("accelerator.cpp", "device.h", "guard.h", "kernels.h", "backend.h")),
    python=True,
)
_library: ctypes.PyDLL | None = None
_blocking: ctypes.CDLL | None = None


def build() -> compiled.Build:
    """Compile it unless it is there: about a minute."""
    return compiled.build(LIBRARY)


def load() -> None:
    """Make the device and its c10d backend known to torch. May be called again: nothing happens."""
    global _library, _blocking
    if _library is not None:
        return
    library = compiled.find(LIBRARY)
    if library is None:
        made = build()
        library = made.library
        if library is None:
            why = made.detail or made.outcome.value
            raise RuntimeError(f"the simulated accelerator was not built: {why}")
    import torch
    import torch.distributed as dist

    _library = ctypes.PyDLL(str(library), ctypes.RTLD_GLOBAL)
    _blocking = ctypes.CDLL(str(library))  # the same library; its calls give the GIL away
    _library.loomsim_backend.restype = ctypes.py_object
    _library.loomsim_backend.argtypes = [
        ctypes.py_object,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    _library.loomsim_pending.restype = ctypes.c_uint64
    _library.loomsim_allocated.restype = ctypes.c_int64
    _library.loomsim_load()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(torch))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if dist.is_available():
        dist.Backend.register_backend(NAME, _backend, devices=[NAME])


def busy(ms: float) -> None:
    """Launch a kernel that takes so long."""
    if _native().loomsim_busy(ctypes.c_int64(round(ms * 1e6))) != 0:
        raise RuntimeError("loomsim error: the kernel was not launched")


def stick() -> None:
    """Launch a kernel that does not end until `release`."""
    _native().loomsim_busy(ctypes.c_int64(-1))


def release() -> None:
    _native().loomsim_release()


def lose() -> None:
    """The device falls off the bus: every call fails from now on, and no operation completes."""
    _native().loomsim_lose()


def stall(on: bool = True) -> None:
    """Collectives that this rank's device has reached do not end while this is on."""
    _native().loomsim_stall(int(on))


def fail(collectives: int = 1) -> None:
    """The next collectives that this rank's device reaches fail."""
    _native().loomsim_fail(collectives)


def results(on: bool = True) -> None:
    """Whether works say how they ended to whoever has dropped them (`get_future_result`)."""
    _native().loomsim_results(int(on))


def transfer(ms: float) -> None:
    """A collective takes this much longer once everybody is there."""
    _native().loomsim_transfer(ctypes.c_uint64(round(ms * 1e6)))


def depth(tasks: int) -> None:
    """How many tasks a stream holds before a launch blocks the host."""
    _native().loomsim_depth(ctypes.c_uint64(tasks))


def pending() -> int:
    """Tasks of the current stream that have not run."""
    return int(_held().loomsim_pending())


def allocated() -> int:
    """Bytes of device memory in use."""
    return int(_held().loomsim_allocated())


def capture(on: bool) -> None:
    """Begin or end a stream capture by this thread, in CUDA's global mode."""
    _held().loomsim_capture(int(on))


def invalidated() -> int:
    """Calls that would have ended a capture."""
    return int(_held().loomsim_invalidated())


def _native() -> ctypes.CDLL:
    if _blocking is None:
        raise RuntimeError("call torchloom.chaos.accelerator.load() first")
    return _blocking


def _held() -> ctypes.PyDLL:
    _native()
    assert _library is not None
    return _library


def _backend(store: Any, rank: int, size: int, timeout: Any) -> Any:
    import torch.distributed as dist

    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return _held().loomsim_backend(gloo, rank, size, round(timeout.total_seconds() * 1000))


def _module(torch: Any) -> types.ModuleType:
    """What torch looks for at `torch.loomsim`."""
    module = types.ModuleType(f"torch.{NAME}")
    pid, generator = os.getpid(), torch.Generator()
    found: dict[str, Any] = {
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: os.getpid() != pid,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: torch.accelerator.synchronize(),
        "current_stream": lambda device=None: torch.accelerator.current_stream(),
        "default_generators": (generator,),
        "manual_seed_all": generator.manual_seed,
        "manual_seed": generator.manual_seed,
        "get_rng_state": lambda device=None: generator.get_state(),
        "set_rng_state": lambda state, device=None: generator.set_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "Stream": torch.Stream,
        "Event": torch.Event,
    }
    for name, value in found.items():
        setattr(module, name, value)
    return module
