"""Ends in the way argv[1] names; run under python and under the probe, nobody must see a difference."""

import atexit
import os
import signal
import sys
import threading
import time


def boom() -> None:
    {}["missing"]


def chained() -> None:
    try:
        boom()
    except KeyError as error:
        raise ValueError("a consequence") from error


def late_thread() -> None:
    atexit.register(print, "atexit")
    over = threading.Event()
    threading.Thread(target=lambda: (over.wait(), time.sleep(0.05), print("thread"))).start()
    print("main is over")
    over.set()


def own_excepthook() -> None:
    def hook(kind: type, error: BaseException, trace: object) -> None:
        frames = []
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)  # type: ignore[attr-defined]
            trace = trace.tb_next  # type: ignore[attr-defined]
        print("hook", kind.__name__, error, frames)

    sys.excepthook = hook
    boom()


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(print, "atexit")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def forked_child_falls_out_of_the_script() -> None:
    child = os.fork()
    if child:
        print(os.waitpid(child, 0)[1])
    else:
        raise RuntimeError("the child")


def looks() -> None:
    main = sys.modules["__main__"]
    print(main.__dict__ is globals(), sorted(k for k in vars(main) if k.startswith("__")))
    print(main.__file__, main.__spec__, __package__, sys.argv, sys.path, os.getcwd())
    print(type(main.__loader__).__name__, sys.excepthook is sys.__excepthook__)
    print(sys.exc_info(), len(sys._current_frames()), sorted(os.listdir("/proc/self/fd"))[:3])


ENDS = {
    "last line": lambda: print("done"),
    "code 0": lambda: sys.exit(0),
    "code 3": lambda: sys.exit(3),
    "code 259": lambda: sys.exit(259),
    "message": lambda: sys.exit("no data"),
    "exception": boom,
    "chained": chained,
    "os._exit": lambda: os._exit(7),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupted": interrupted,
    "late thread": late_thread,
    "own excepthook": own_excepthook,
    "forked child": forked_child_falls_out_of_the_script,
    "looks": looks,
}

if __name__ == "__main__":
    ENDS[sys.argv[1]]()
