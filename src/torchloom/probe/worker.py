"""The worker's main: map the black box, switch the probe on, run the user's program, write the end record.

`run(spec)` is called by the spawner in the forked child (or by `probe.launch` after an exec) when session,
descriptors, environment, directory, signals and limits are set. It never returns. It ends by *raising* what
ended the program (SystemExit, KeyboardInterrupt or the program's own exception), and the caller must let that
pass to the top of the interpreter: then atexit handlers, non-daemon threads, flushing and the exit status are
Python's own. So the caller must

* call it outside any `except` block (else Python would chain the exceptions) and catch nothing around it;
* have been started with `python -m …`: `sys.path[0]` is replaced (nothing is, under -P);
* write Life.FORKED, if at all, before the fork or in the child, never after `run` has begun.

Telemetry that cannot start is left out; the program runs all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from torchloom.probe import program
from torchloom.probe.box import open_box, write_identity
from torchloom.probe.ending import end_record, write_end


def run(spec: Mapping[str, Any]) -> NoReturn:
    """Run the program `spec` names ("script" or "module", "argv") recording into the box at "box"."""
    pid = os.getpid()
    box = open_box(spec["box"]) if spec.get("box") else None
    if box is not None:
        write_identity(box.view)
    try:
        program.execute(script=spec.get("script"), module=spec.get("module"), argv=spec.get("argv") or ())
    except BaseException as error:
        program.hide_our_frames(error)
        if box is not None and os.getpid() == pid:
            write_end(box.view, end_record(error, stopped=False))
        raise
    if box is not None and os.getpid() == pid:
        write_end(box.view, end_record(None, stopped=False))
    raise SystemExit(0)
