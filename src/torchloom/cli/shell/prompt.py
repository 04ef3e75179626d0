"""The prompt of `loom shell`: history, completion, active jobs below, notices above. Runs no verb."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.patch_stdout import patch_stdout

from torchloom import __version__
from torchloom.cli.shell.notices import Notices
from torchloom.cli.shell.shell import WORDS, Leave
from torchloom.cli.show import output
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.home import Home, private_directory

LOOK_EVERY_S = 2.0


class Verbs(Completer):
    """The same candidates as in a shell, on Tab."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        from torchloom.cli.shell.complete import candidates

        words = document.text_before_cursor.lstrip().split(" ")
        found = candidates(words)
        if len(words) == 1:
            found += [(word, "") for word in WORDS if word.startswith(words[0])]
        for word, said in found:
            yield Completion(word, start_position=-len(words[-1]), display_meta=said[:60])


class Monitor:
    def __init__(self, endpoint: Endpoint, run: Callable[[str], int]) -> None:
        self._endpoint = endpoint
        self._run = run
        self._below = ""
        self._over = threading.Event()
        self._speaking = threading.Lock()
        self._at_prompt = False
        self._unsaid: list[str] = []
        """Notices that arrived while a command was printing; the next prompt shows them."""
        self._colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def run(self) -> int:
        """Run until exit or Ctrl-D. Returns the exit code of the last command."""
        session: PromptSession[str] = PromptSession(
            history=FileHistory(str(_history_file(Home.default()))),
            completer=Verbs(),
            complete_while_typing=False,
            complete_in_thread=True,
            auto_suggest=AutoSuggestFromHistory(),
            bottom_toolbar=lambda: self._below,
            refresh_interval=1.0,
        )
        print(f"torchloom {__version__} at {self._endpoint.url}. Tab completes, `help` lists, Ctrl-D exits.")
        threads = [
            threading.Thread(target=self._look, daemon=True),
            threading.Thread(target=Notices(self._endpoint, self.say, self._over).follow, daemon=True),
        ]
        for thread in threads:
            thread.start()
        code = 0
        try:
            while True:
                try:
                    code = self._run(self._ask(session))
                except KeyboardInterrupt:
                    continue  # Ctrl-C empties the line, as in a shell
                except (EOFError, Leave):
                    return code
        finally:
            self._over.set()

    def _ask(self, session: PromptSession[str]) -> str:
        with patch_stdout(raw=True):
            with self._speaking:
                self._at_prompt = True
                for text in self._unsaid:
                    self._write(text)
                self._unsaid.clear()
            try:
                return session.prompt(ANSI("\x1b[36mloom>\x1b[0m ") if self._colour else "loom> ")
            finally:
                with self._speaking:
                    self._at_prompt = False

    def say(self, text: str, mark: str) -> None:
        """Print a notice above the input line. Called by another thread."""
        code = {"bad": 31, "good": 32}.get(mark, 36)
        line = f"\x1b[{code}m●\x1b[0m {text}" if self._colour else f"* {text}"
        with self._speaking:
            if self._at_prompt:
                self._write(line)
            else:
                self._unsaid.append(line)

    def _write(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def _look(self) -> None:
        """Keep the line below the prompt up to date."""
        client = Client(self._endpoint, timeout_s=5.0)
        while not self._over.is_set():
            try:
                self._below = _summary(
                    [(job["id"], output.state(job), job["step"]) for job in client.jobs(active=True)]
                )
            except LoomError as error:
                self._below = f" {error.message} "
            self._over.wait(LOOK_EVERY_S)


def _summary(jobs: list[tuple[str, str, int]]) -> str:
    now = time.strftime("%H:%M:%S")
    if not jobs:
        return f" {now}  no job is active "
    shown = " · ".join(f"{id} {state} step {step}" for id, state, step in jobs[:3])
    more = f" · {len(jobs) - 3} more" if len(jobs) > 3 else ""
    return f" {now}  {shown}{more} "


def _history_file(home: Home) -> Path:
    """Create the history file private from the start: command lines reveal what a user works on."""
    with contextlib.suppress(LoomError):
        private_directory(home.root)
    path = home.root / "shell_history"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError:
        return Path(os.devnull)
    return path
