"""Follows one job to its end: its logs, its state, its incidents; stops it on Ctrl-C. Owns the exit code.

Two threads (logs, state) read and put their results into one queue; only the main thread writes to the
terminal and reacts to signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchloom.cli.show import story
from torchloom.cli.show.screen import Screen
from torchloom.client import Client, Endpoint, NotAnswering, Unavailable
from torchloom.errors import LoomError, NotFound
from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client.schema import JobDetail

LOOK_LIVE_S = 0.25
LOOK_QUIET_S = 2.0
LAST_WORDS_WITHIN_S = 10.0
"""How long to wait for the rest of the logs after the job has ended."""
AGAIN_AFTER_S = 0.2

Item = tuple[str, Any]
"""A reader's result: its kind (`log`, `job`, `say`, …) and content."""


class Follower:
    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        home: Home | None,
        shown: frozenset[int] | None,
        quiet: bool,
        timestamps: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._job = job
        self._home = home
        """Home of our own stack, to restart it if it is gone; None for a stack elsewhere."""
        self._shown = shown
        self._quiet = quiet
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._over = threading.Event()
        self._interrupts = 0
        self._acted = 0
        # It reports starts itself.
        self._screen = Screen(
            live=not quiet and sys.stderr.isatty(),
            timestamps=timestamps,
            raw=os.environ.get("LOOM_RAW") == "1",
            start_lines=False,
        )
        self._story = story.Story(job)

    def run(self) -> int:
        """Run until the job has ended and its logs are shown. Returns the exit code."""
        readers = [threading.Thread(target=self._read_state, daemon=True)]
        if not self._quiet:
            readers.append(threading.Thread(target=self._read_logs, daemon=True))
        with self._signals():
            for reader in readers:
                reader.start()
            try:
                last = self._show()
            finally:
                self._over.set()
                self._screen.close()
        if self._quiet:
            print(json.dumps(last))
        else:
            self._say(story.summary(last), "good" if last["state"] == "completed" else "bad")
        return exit_code(last, interrupted=self._interrupts > 0)

    # ---- the terminal ----

    def _show(self) -> JobDetail:
        last: JobDetail | None = None
        logs_done = self._quiet
        give_up = 0.0
        while last is None or not logs_done:
            self._act_on_interrupt()
            try:
                kind, body = self._queue.get(timeout=0.1)
            except Empty:
                if last is not None and time.monotonic() > give_up:
                    break  # show what has arrived, however late
                continue
            match kind:
                case "log":
                    self._show_log(body)
                case "unfinished":
                    if self._shown is None or body["rank"] in self._shown:
                        self._screen.unfinished(body["rank"], body["text"])
                        self._screen.flush()
                case "job":
                    self._show_job(body)
                    if body["ended"] and last is None:
                        last = body
                        give_up = time.monotonic() + LAST_WORDS_WITHIN_S
                case "logs-done":
                    logs_done = True
                case "say":
                    self._say(body["text"])
                case "fatal":
                    raise body["error"]
        return last

    def _say(self, text: str, mark: str = "") -> None:
        """One sentence of our own."""
        self._screen.say(text, mark)

    def _show_log(self, body: dict[str, Any]) -> None:
        if self._shown is not None and body["rank"] not in self._shown:
            return
        if body["lost_bytes"]:
            self._say(f"{body['lost_bytes']} bytes of rank {body['rank']}'s log were dropped")
        self._screen.output(body["rank"], body["text"], body.get("at_ns", 0))
        self._screen.flush()

    def _show_job(self, view: JobDetail) -> None:
        if self._quiet:
            return
        for sentence, mark in self._story.tell(view):
            self._say(sentence, mark)
        if not view["ended"]:
            self._screen.status(story.status_line(view))

    # ---- Ctrl-C ----

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def interrupt(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1

        old = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _act_on_interrupt(self) -> None:
        """First Ctrl-C: stop at a step boundary. Second: kill."""
        if self._interrupts <= self._acted or self._acted >= 2:
            return
        kill = self._interrupts > 1
        self._acted = 2 if kill else 1
        text = "killing it" if kill else "stopping at the next step boundary; Ctrl-C again kills"
        self._say(f"interrupted: {text}")
        threading.Thread(target=self._stop, args=(kill,), daemon=True).start()

    def _stop(self, kill: bool) -> None:
        """Repeat the request until the control service accepts it: it may be restarting."""
        while not self._over.is_set():
            try:
                Client(self._endpoint).stop(self._job, {"kill": kill})
                return
            except (NotAnswering, Unavailable):
                time.sleep(AGAIN_AFTER_S)
            except LoomError as error:
                self._queue.put(("say", {"text": str(error)}))
                return

    # ---- the readers ----

    def _read_state(self) -> None:
        api = Client(self._endpoint)
        after, away = -1, False
        wait_s = LOOK_QUIET_S if self._quiet or not sys.stderr.isatty() else LOOK_LIVE_S
        while not self._over.is_set():
            try:
                view = api.job(self._job, after=after, wait_s=wait_s)
            except NotFound as error:
                self._queue.put(("fatal", {"error": error}))
                return
            except LoomError as error:
                if not away:
                    self._queue.put(("say", {"text": f"{error.message.rstrip('.')}; the workers continue"}))
                away = True
                self._mend()
                time.sleep(AGAIN_AFTER_S)
                api = Client(self._endpoint)
                continue
            if away:
                self._queue.put(("say", {"text": "torchloom answers again"}))
            after, away = view["seq"], False
            self._queue.put(("job", view))
            if view["ended"]:
                return

    def _mend(self) -> None:
        """Restart the supervisor of our own stack if it is gone: nobody else would."""
        if self._home is not None:
            from torchloom.cli.service import stack

            with contextlib.suppress(LoomError, OSError):
                stack.begin(self._home)
                # If every part had died, the new ones may listen on another port.
                self._endpoint = Endpoint.find(self._home)

    def _read_logs(self) -> None:
        place = ""
        while not self._over.is_set():
            api = Client(self._endpoint)
            api.keep_text = True  # the screen makes it safe
            bars = self._screen.wants_bars
            try:
                for kind, id, body in api.log_stream(self._job, unfinished=bars, last_event_id=place):
                    place = id or place
                    if kind == "end":
                        self._queue.put(("logs-done", {}))
                        return
                    self._queue.put((kind, body))
            except LoomError:
                pass  # the other reader reports it
            api.close()
            time.sleep(AGAIN_AFTER_S)


def exit_code(view: JobDetail, interrupted: bool) -> int:
    """0 completed, 1 failed, 130 stopped by us or by somebody else."""
    match view["state"]:
        case "completed":
            return 0
        case "stopped":
            return 130
        case _:
            return 130 if interrupted else 1
