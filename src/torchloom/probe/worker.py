"""The worker's main: map the black box, switch the probe on, run the user's program, write the end record.

`run(spec)` is called by the spawner in the forked child (or by `probe.launch` after an exec) when session,
descriptors, environment, directory, signals and limits are set. It never returns. It ends by *raising* what
ended the program (SystemExit, KeyboardInterrupt or the program's own exception), and the caller must let that
pass to the top of the interpreter: then atexit handlers, non-daemon threads, flushing and the exit status are
Python's own. So the caller must

* call it outside any `except` block (else Python would chain the exceptions) and catch nothing around it;
* have been started with `python -m …`: `sys.path[0]` is replaced (nothing is, under -P);
* write Life.FORKED, if at all, before the fork or in the child before `run`;
* leave `torchloom` in `sys.modules`: `import torchloom` in the script must find this probe.

If telemetry cannot start, the program runs without it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from torchloom.probe import program, session, streams
from torchloom.probe.box import OwnBox, open_box
from torchloom.wire.blackbox import Header


def run(spec: Mapping[str, Any]) -> NoReturn:
    """Run the program `spec` names ("script" or "module", "argv") recording into the box at "box"."""
    box = open_box(spec["box"]) if spec.get("box") else None
    probe = _record(box) if box is not None else None
    try:
        program.execute(script=spec.get("script"), module=spec.get("module"), argv=spec.get("argv") or ())
    except BaseException as error:
        program.hide_our_frames(error)
        if probe is not None:
            probe.end(error)
        raise
    if probe is not None:
        probe.end(None)
    raise SystemExit(0)


def adopt(path: str) -> bool:
    """Record into the box at `path` from now on, unless it is another process's."""
    box = open_box(path)
    if box is None or box.view.header(Header.PID) not in (0, os.getpid()):
        return False
    return _record(box) is not None


def _record(box: OwnBox) -> session.Session | None:
    """Switch the probe on. The last atexit handler to run says that the interpreter is really ending."""
    streams.count_into(box.view)
    probe = session.begin(box)
    if probe is not None:
        atexit.register(probe.ended)
    return probe
