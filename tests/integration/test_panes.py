"""What a person sees: the real program in a real terminal (tmux) of 80, 100 and 140 columns.

The API behind it is real too; its agent only pretends to train, so that every picture has the same content.
The pictures are kept as files to be looked at: `LOOM_GOLDEN=write` writes them anew. Numbers that depend on
time are not compared, nor is how wide a column becomes because of them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import TOKEN, ApiServer, api_server
from steered_ranks import Ranks

GOLDEN = Path(__file__).parent / "golden"
LOOM = str(Path(sys.executable).parent / "loom")
HANG_S = 240.0
"""Only against a hang."""
PASSING = re.compile(r"\[loom\] (?!mine completed)")
"""Sentences of `loom run` that come or not, depending on how fast it is."""
MASKS = (
    (re.compile(r"\n {8,}(?=\S)"), " "),
    (re.compile(r"(  \S.{0,9})[^\n]*…$", re.MULTILINE), r"\1…"),
    (re.compile(r"\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (s/step|s|ms|min|h)\b"), "N s"),
    (re.compile(r"\bN s N s\b"), "N s"),
    (re.compile(r"\b\d+\.\d+( ?%|(?=\s*$))", re.MULTILINE), "N %"),  # cut off at the edge, too
    (re.compile(r"(?<![\w.-])\d+\.\d+(?=/s)"), "N"),
    (re.compile(r"[─━]+"), "─"),
    (re.compile("[▏▎▍▌▋▊▉█]"), ""),
    (re.compile(r"[ \t]+"), " "),
)


class Pane:
    """A tmux server of its own with one window."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self._tmux = ["tmux", "-S", str(root / "tmux"), "-f", "/dev/null"]
        self._env = env

    def run(self, columns: int, rows: int, script: str) -> None:
        """Show what this shell script writes; the pane stays when it has ended."""
        self._do("new-session", "-d", "-x", str(columns), "-y", str(rows), f"{script}\nsleep 600")

    def text(self) -> str:
        lines = self._do("capture-pane", "-p").rstrip("\n").split("\n")
        return "\n".join(line.rstrip() for line in lines)

    def joined(self) -> list[str]:
        """The lines as they were written: those that the terminal had to wrap are whole."""
        return self._do("capture-pane", "-p", "-J").rstrip("\n").split("\n")

    def colours(self) -> str:
        return self._do("capture-pane", "-p", "-e")

    def press(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def wait(self, condition: Callable[[str], Any]) -> str:
        give_up = time.monotonic() + HANG_S
        while not condition(found := self.text()):
            assert time.monotonic() < give_up, found
            time.sleep(0.1)
        return found

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], env=self._env, capture_output=True, timeout=60)

    def _do(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], env=self._env, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout


@pytest.fixture
def panes(tmp_path: Path) -> Iterator[Callable[[ApiServer], Pane]]:
    if shutil.which("tmux") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is missing (apt-get install tmux)")
        pytest.skip("tmux is not installed (apt-get install tmux)")
    made: list[Pane] = []

    def make(server: ApiServer) -> Pane:
        root = tmp_path / f"{len(made)}"
        root.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TMUX"))}
        env |= {"LOOM_ADDRESS": f"127.0.0.1:{server.port}", "LOOM_TOKEN": TOKEN, "LOOM_HOME": str(root)}
        env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        env.pop("NO_COLOR", None)
        made.append(Pane(root, env))
        return made[-1]

    yield make
    for pane in made:
        pane.close()


def _history(server: ApiServer) -> None:
    """One job has ended, one trains after a rank has crashed and has a bar, one waits for room."""
    agent = server.agents[0]
    agent.clock = time.time_ns
    done = server.submit(name="pretrain", world_size=1)
    server.wait(lambda: any(ref.job == done for ref in agent.live))
    server.call(lambda: agent.exit(next(ref for ref in agent.live if ref.job == done), 0))
    server.wait(lambda: server.weaver.fleet.jobs[done].ended)
    server.submit(name="finetune", world_size=2, max_steps=2000)
    server.wait(lambda: sum(ref.job == "finetune" for ref in agent.live) == 2)
    server.call(lambda: agent.step("finetune"))
    failing = next(ref for ref in agent.live if (ref.job, ref.rank) == ("finetune", 1))
    server.call(lambda: agent.exit(failing, 1))
    server.wait(lambda: server.weaver.fleet.jobs["finetune"].generation == 2)
    server.steer("finetune", Ranks(step=900))
    _print(server, "finetune")
    server.submit(name="sweep-with-a-longer-name", world_size=15, queue=True)


def _print(server: ApiServer, job: str) -> None:
    agent = server.agents[0]
    began_ns = time.time_ns() - 60 * 10**9
    for rank in (0, 1):
        log, marks = b"", []
        for number in range(3):
            log += f"\x1b[32mepoch {number}\x1b[0m of rank {rank}\n".encode()
            log += b"".join(b"\rtrain: %3d%%|##        |" % done for done in range(0, 101, 20)) + b"\n"
            marks.append((len(log), began_ns + (2 * number + rank) * 10**9))
        agent.printed[(job, rank)], agent.logs[(job, rank)] = marks, log
        agent.unfinished[(job, rank)] = b"\rtrain:  35%|###       | 7/20\rtrain:  40%|####      | 8/20"


class Pictures:
    """Those of one width. One that is not as kept may be because the machine stood still: see `all_alike`."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._wrong: list[str] = []

    def compare(self, name: str, found: str) -> None:
        """Compare with the kept picture, or keep this one."""
        file = GOLDEN / f"{name}-{self.columns}.txt"
        if os.environ.get("LOOM_GOLDEN") == "write":
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(found.rstrip("\n") + "\n")
        if masked(found) != masked(file.read_text()):
            ours, kept = "\n".join(masked(found)), "\n".join(masked(file.read_text()))
            self._wrong.append(f"{file.name} shows something else now:\n{ours}\n-- instead of\n{kept}")

    def all_alike(self) -> str:
        return "\n".join(self._wrong)


def masked(text: str) -> list[str]:
    """What is compared: without what depends on time, sentences in one line, only lines that must come."""
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return [line.strip() for line in text.strip().split("\n") if not PASSING.match(line)]


def looks(*commands: str) -> str:
    """A script that shows each command and what it prints, and then that it is done."""
    shown = [f"echo {shlex.quote('$ loom ' + one)}; {LOOM} {one}; echo" for one in commands]
    return "; ".join([*shown, "echo THE-END"])


@pytest.mark.long  # on a busy machine speed and time left have other widths, and other columns are left out
@pytest.mark.parametrize("columns", (80, 100, 140))
def test_the_terminal_looks_as_it_was_looked_at(
    columns: int, panes: Callable[[ApiServer], Pane], tmp_path: Path
) -> None:
    """All at once, because to start the program takes the time."""
    (tmp_path / "train.py").write_text("")
    for _ in range(3):  # a machine that stands still makes nodes unreachable, and that is shown
        pictures = Pictures(columns)
        with api_server(slots=16) as server:
            _history(server)
            lists, logs, run, top = (panes(server) for _ in range(4))
            lists.run(
                columns, 150, looks("ps", "ps -a", "status finetune", "incidents", "incident finetune.1")
            )
            logs.run(columns, 60, looks("logs finetune", "logs finetune --tail 2 --timestamps"))
            top.run(columns, 24, f"exec {LOOM} top")
            pictures.compare("lists", lists.wait(lambda text: "THE-END" in text))
            _check_logs(logs, pictures)
            pictures.compare("top", top.wait(lambda text: "finetune" in text and "crash" in text))
            top.press("q")
            run.run(columns, 24, f"cd {tmp_path}; " + looks("run --name mine --nproc-per-node 2 train.py"))
            _run_to_its_end(server, run, pictures)
            whole = [line for pane in (lists, logs, run) for line in pane.joined()]
        if not pictures.all_alike():
            break
    assert not pictures.all_alike(), pictures.all_alike()
    assert max(map(len, whole)) <= columns, "a line was wrapped by the terminal"


def _check_logs(pane: Pane, pictures: Pictures) -> None:
    found = pane.wait(lambda text: "THE-END" in text)
    pictures.compare("logs", found)
    assert re.search(r"\x1b\[32mepoch 0", pane.colours()), "the script's own colours"
    lines = [line for line in found.split("\n") if "epoch" in line]
    assert [line[-6:] for line in lines[:6]] == ["rank 0", "rank 1"] * 3, "in the order of time"


def _run_to_its_end(server: ApiServer, pane: Pane, pictures: Pictures) -> None:
    agent = server.agents[0]
    server.wait(lambda: sum(ref.job == "mine" for ref in agent.live) == 2, HANG_S)
    _print(server, "mine")
    server.steer("mine", Ranks(step=5, offset=None))
    pictures.compare("run-live", pane.wait(lambda text: text.count("8/20") == 2 and "step 4" in text))
    for rank in (0, 1):
        agent.unfinished[("mine", rank)] = b""
        agent.logs[("mine", rank)] += b"\rtrain:  40%|####      | 8/20\rtrain: 100%|##########| 20/20\n"
    for ref in sorted((ref for ref in agent.live if ref.job == "mine"), key=lambda ref: ref.rank):
        server.call(lambda ref=ref: agent.exit(ref, 0))
    found = pane.wait(lambda text: "THE-END" in text)
    assert "8/20" not in found, "the last state of a bar takes the place of those before"
    pictures.compare("run", found)
