"""The end record: how the script ended, for readers of the black box. It prints nothing."""

from __future__ import annotations

import json
import re
import threading
import time

from torchloom.errors import RunTakenOver, StoreUnreachable
from torchloom.wire.blackbox import END, View

MESSAGE_CHARS = 2000
TRACEBACK_CHARS = 8000

_LOST_CONNECTION = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused|aborted)"
    r"|broken pipe|socket (is )?closed|remote process exited|remote server shutdown"
    r"|ncclremoteerror|communicator was aborted|peer (has )?(closed|exited)",
    re.IGNORECASE,
)


def end_record(error: BaseException | None, *, stopped: bool) -> dict[str, object]:
    """What is kept of the script's end; `error` is what came out of it, None when it ran to its last line."""
    record: dict[str, object] = {
        "how": "exit",
        "code": 0,
        "exception": None,
        "message": None,
        "traceback": None,
        "at_ns": time.monotonic_ns(),
        "connection_lost": False,
        "store_away": False,
        "taken_over": False,
        "stopped": stopped,
    }
    if error is None:
        return record
    if isinstance(error, SystemExit):
        record["code"] = exit_code(error)
        if not isinstance(error.code, int | None):
            record["message"] = _text(error.code)
        return record
    interrupted = isinstance(error, KeyboardInterrupt)
    record.update(
        how="signal" if interrupted else "exception",
        code=130 if interrupted else 1,
        exception=_name(type(error)),
        message=_text(error),
        traceback=_traceback(error),
        connection_lost=lost_connection(error),
        store_away=isinstance(error, StoreUnreachable),
        taken_over=isinstance(error, RunTakenOver),
    )
    return record


def threads_go_on() -> bool:
    """Whether a thread of the script keeps the process alive after its main thread, as Python waits for it.

    That thread may be the one that trains; so with such a thread the process is not reported as ending.
    """
    main = threading.main_thread()
    return any(t is not main and not t.daemon and t.is_alive() for t in threading.enumerate())


def exit_code(end: SystemExit) -> int:
    """The status the process will have."""
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


def lost_connection(error: BaseException) -> bool:
    """Whether the error says that a peer of the job went away: then this process is not the culprit.

    Only torch's errors count (RuntimeError and its Dist… children); a script's own OSError about some
    other server does not.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, RuntimeError) and _LOST_CONNECTION.search(_text(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def write_end(view: View, record: dict[str, object]) -> None:
    """Write the record, with as much of the traceback's tail as fits."""
    while True:
        data = json.dumps(record).encode()
        if len(data) <= END.capacity:
            view.write_blob(END, data)
            return
        for name in ("traceback", "message"):
            text = record[name]
            if isinstance(text, str):
                record = {**record, name: text[len(text) // 2 :] if name == "traceback" else text[:500]}


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: object) -> str:
    try:
        return str(value)[:MESSAGE_CHARS]
    except Exception as broken:  # noqa: BLE001 – a script's own __str__ may do anything
        return f"<no text: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    import traceback

    try:
        return "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]
    except Exception as broken:  # noqa: BLE001 – as above
        return f"<no traceback: {type(broken).__name__}>"
