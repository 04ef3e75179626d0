"""How the probe ends a script at a boundary: cleanly with all ranks, or because it must not continue.

Both are a SystemExit, so that `finally` blocks and atexit handlers run and no `except Exception` keeps them.
A script that swallows one meets it again at every boundary. A script that handles SIGTERM is left to its
handler instead. A worker that is lost ends for sure: should its
clean-up wait for ranks that wait for it, it is cut short.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time

from torchloom.probe.end_record import end_record, write_end
from torchloom.wire.blackbox import View

END_WITHIN_S = 10.0
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + "/"
_LIBRARY = os.path.dirname(os.__file__) + "/"


class StopAtBoundary(SystemExit):
    """Ends the script with status 0 at a step boundary."""

    def __init__(self) -> None:
        super().__init__(0)


class Lost(SystemExit):
    """Ends the script with status 1: continuing could make this rank differ from the others."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"torchloom ends this worker, because it could differ from the others: {why}")


class Interrupted(BaseException):
    """Carries past our guard what a signal handler of the script raised while this rank stood at a boundary:
    it is the script's own, and the boundary comes again."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def is_ours(error: BaseException) -> bool:
    """Whether it was raised in this package or in the standard library that it calls; else a signal handler
    of the script's raised it while one of our calls waited."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None:
        return True
    raised_in = frames.tb_frame.f_code.co_filename
    if raised_in.startswith(_PACKAGE):
        return True
    return raised_in.startswith(_LIBRARY) and "/site-packages/" not in raised_in


def nap(seconds: float) -> None:
    """Sleep; the only thing that can go wrong in it is the script's."""
    try:
        time.sleep(seconds)
    except Exception as error:  # noqa: BLE001 – raised by a signal handler of the script's
        raise Interrupted(error) from None


class ScriptsHandler:
    """The script's own handler of a signal, which may save and ends the loop: a stop leaves the rest to it.

    The signal comes at the boundary that all ranks agreed on, so the handlers of all ranks run at one step.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self, name: str = "SIGTERM") -> bool:
        """Send this process the signal, once, if the script handles it; whether it was sent."""
        number = getattr(signal, name, None)
        if not self._asked and isinstance(number, signal.Signals) and callable(signal.getsignal(number)):
            self._asked = True
            try:
                signal.raise_signal(number)
            except Exception as error:  # noqa: BLE001 – raised by the script's handler
                raise Interrupted(error) from None
        return self._asked


def end_surely(view: View, lost: Lost) -> None:
    """Write the end record now, and limit what is still to come."""
    write_end(view, end_record(lost, stopped=False))
    faulthandler.dump_traceback_later(END_WITHIN_S, exit=True, file=2)
