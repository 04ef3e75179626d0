"""Writes what a script can see of its process as JSON into $DUMP_DIRECTORY, under torchrun or torchloom."""

# ruff: noqa: E402

import asyncio
import atexit
import faulthandler
import gc
import io
import locale
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings

EARLY = {
    "os_threads_at_start": len(os.listdir("/proc/self/task")),
    "python_threads_at_start": threading.active_count(),
    "main_attributes": {
        k: repr(v)
        for k, v in sorted(globals().items())
        if k.startswith("__") and k not in ("__builtins__", "__warningregistry__")
    },
    "main_loader": type(__loader__).__name__,
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "warning_options": sys.warnoptions,
    "tempdir": tempfile.gettempdir(),
    "environment": dict(os.environ),
    "recursion_limit": sys.getrecursionlimit(),
}

# Only now: what is above is the process as the script finds it, whatever its imports do to it.
import numpy
import torch
import torch.distributed as dist


def stream(s):
    return {
        "type": type(s).__name__,
        "name": s.name,
        "mode": s.mode,
        "encoding": s.encoding,
        "errors": s.errors,
        "line_buffering": s.line_buffering,
        "write_through": s.write_through,
        "raw_below": isinstance(s.buffer, io.RawIOBase),
        "tty": s.isatty(),
    }


def c_environment():
    with open("/proc/self/status") as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    return {k: fields[k].strip() for k in ("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Cpus_allowed_list")}


def shell_environment():
    return sorted(os.fsdecode(line) for line in subprocess.check_output("env").splitlines())


def descriptors():
    return sorted(
        os.readlink(f"/proc/self/fd/{n}").split(":")[0]
        for n in os.listdir("/proc/self/fd")
        if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")
    )


def limits():
    names = sorted(n for n in dir(resource) if n.startswith("RLIMIT_"))
    return {n: resource.getrlimit(getattr(resource, n)) for n in names}


def handlers():
    return {
        signal.Signals(n).name if n in signal.Signals._value2member_map_ else str(n): getattr(
            signal.getsignal(n), "name", repr(signal.getsignal(n))
        )
        for n in signal.valid_signals()
    }


def child_sees(method):
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        return pool.apply(double, (21,))


def double(x):
    return 2 * x


def main():
    rank = os.environ.get("RANK", "0")
    path = os.path.join(os.environ["DUMP_DIRECTORY"], f"{rank}.json")
    seen = {
        **EARLY,
        "descriptors": descriptors(),
        "argv": sys.argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "x_options": sys._xoptions,
        "executable": sys.executable,
        "prefix": [sys.prefix, sys.base_prefix],
        "orig_argv": sys.orig_argv,
        "name": __name__,
        "file": __file__,
        "main_is_main": sys.modules["__main__"].__dict__ is globals(),
        "cwd": os.getcwd(),
        "limits": limits(),
        "umask": (os.umask(0o077), os.umask(0o077))[0],
        "handlers": handlers(),
        "status": c_environment(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "scheduler": os.sched_getscheduler(0),
        "leads_session": os.getsid(0) == os.getpid(),
        "leads_group": os.getpgid(0) == os.getpid(),
        "uid_gid": [os.getresuid(), os.getresgid(), os.getgroups()],
        "locale": [locale.setlocale(c) for c in (locale.LC_CTYPE, locale.LC_NUMERIC, locale.LC_TIME)],
        "encodings": [sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding()],
        "timezone": [time.tzname, time.timezone],
        "stdin": [os.readlink("/proc/self/fd/0"), sys.stdin.isatty(), sys.stdin.encoding],
        "stdout": stream(sys.stdout),
        "stderr": stream(sys.stderr),
        "std_same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "daemon": multiprocessing.current_process().daemon,
        "process_name": multiprocessing.current_process().name,
        "parent_process": repr(multiprocessing.parent_process()),
        "start_method": multiprocessing.get_start_method(),
        "spawned_child": "DUMP_SPAWN" in os.environ and child_sees("spawn"),
        "forked_child": child_sees("fork"),
        "warning_filters": [repr(f) for f in warnings.filters],
        "hooks": [
            repr(sys.excepthook),
            repr(sys.unraisablehook),
            repr(threading.excepthook),
            repr(sys.gettrace()),
            repr(sys.getprofile()),
            repr(sys.displayhook),
        ],
        "main_thread": [
            threading.current_thread() is threading.main_thread(),
            threading.main_thread().name,
            threading.main_thread().ident == threading.get_ident(),
            threading.main_thread().native_id == os.getpid(),
        ],
        "faulthandler": faulthandler.is_enabled(),
        "switch_interval": sys.getswitchinterval(),
        "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "host": socket.gethostname(),
        "socket_timeout": socket.getdefaulttimeout(),
        "event_loop_policy": type(asyncio.get_event_loop_policy()).__name__,
        "torch": {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "default_dtype": str(torch.get_default_dtype()),
            "initial_seed": torch.initial_seed(),
            "first_draws": torch.rand(4).tolist(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "grad": torch.is_grad_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "sharing": torch.multiprocessing.get_sharing_strategy(),
            "distributed": [dist.is_initialized(), dist.is_torchelastic_launched()],
            "default_device": str(torch.get_default_device()),
            "bad_fork": torch.cuda._is_in_bad_fork(),
            "parallel_info": torch.__config__.parallel_info(),
        },
        "random": {"python": random.random(), "numpy": numpy.random.rand(), "hash": hash("torchloom")},
        "authkey": multiprocessing.current_process().authkey.hex(),
        "c_environment": shell_environment(),
    }
    big = torch.ones(600, 600)
    (big @ big).sum().item()
    numpy.linalg.inv(numpy.eye(400) + 1)
    seen["os_threads_after_work"] = len(os.listdir("/proc/self/task"))
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    seen["all_reduce"] = total.item()
    dist.destroy_process_group()

    import json

    def write():
        with open(path, "w") as file:
            json.dump(seen, file)

    atexit.register(write)  # so the dump also proves that exit handlers run


if __name__ == "__main__":
    main()
