"""What people run every day, as they wrote it: it works, is seen, and what cannot work is said at once."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from stack import BIN, SCRIPTS, Stack, lines_of, wait_until
from terminals import Terminal, ranks_shown

from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.core.config.box_codec import unwritten
from torchloom.wire.blackbox import SETTINGS

EVERYDAY = str(SCRIPTS / "everyday.py")


def test_trainings_of_many_kinds(stack: Stack, tmp_path: Path) -> None:
    """All at once, because to start them takes the time."""
    module = tmp_path / "pack" / "train.py"
    module.parent.mkdir()
    module.write_text(Path(EVERYDAY).read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = str(tmp_path)
    jobs = {case: stack.submit(EVERYDAY, case, out, workers=1) for case in ("lbfgs", "gan", "compiled")}
    jobs["fsdp2"] = stack.submit(EVERYDAY, "fsdp2", out)
    spawned = stack.submit(EVERYDAY, "spawn", out, str(port), workers=1)
    stack.env["PYTHONPATH"] = out
    done = stack.loom("submit", "-m", "pack.train", "lbfgs", out)
    jobs["-m"] = done.stdout.split()[-1]
    link = tmp_path / "a link.py"
    link.symlink_to(EVERYDAY)
    jobs["odd"] = stack.submit(str(link), "odd", out, "ünï ☃", "", "-x", workers=1)
    python = str(BIN / "python")
    done = stack.loom("submit", "--no-python", python, EVERYDAY, "lbfgs", out)
    wrapped = done.stdout.split()[-1]
    for case, job in jobs.items():
        view = stack.wait_state(job, "completed", "failed")
        assert view["state"] == "completed" and view["step"] == 12, (case, view["reason"])
        assert view["restarts"] == 0
    assert "] ODD [0, 3] ÜNÏ ☃  -X\n" in stack.loom("logs", jobs["odd"]).stdout
    for job in (spawned, wrapped):
        view = stack.wait_state(job, "completed", "failed")
        assert view["state"] == "completed", view["reason"]
        assert "no step seen" in stack.loom("status", job).stdout
    assert [(tmp_path / f"spawned-{rank}").read_text() for rank in (0, 1)] == ["2.0", "2.0"]


def test_a_set_learning_rate_is_in_the_scripts_own_log(stack: Stack, tmp_path: Path) -> None:
    """From the first step on after a restart without a checkpoint, too."""
    job = stack.submit(EVERYDAY, "logged", str(tmp_path), workers=1)
    log, again = tmp_path / "lr-0", tmp_path / "lr-1"
    wait_until(lambda: len(lines_of(log)) > 3, "the script logs")
    stack.steer("set", job, "lr=0.125")
    wait_until(lambda: lines_of(log)[-1] == "0.125", "the script logs what was set")
    wait_until(lambda: unwritten_of(stack, job), "the worker reports that its script writes no learning rate")
    os.kill(stack.worker_pid(job, 0), signal.SIGKILL)
    wait_until(lambda: len(lines_of(again)) > 3, "the restarted script logs")
    assert set(lines_of(again)) == {"0.125"}
    stack.steer("set", job, "lr=own")
    wait_until(lambda: lines_of(again)[-1] == "0.01", "the script's own is back")
    (tmp_path / "end").touch()
    stack.wait_state(job, "completed")
    assert set(lines_of(log) + lines_of(again)) == {"0.01", "0.125"}


def unwritten_of(stack: Stack, job: str) -> str:
    (path,) = stack.home.boxes.glob(f"{job}.r0.*")
    box = ReadableBox.open(path)
    try:
        return unwritten(box.view.read_blob(SETTINGS) or b"")
    finally:
        box.close()


def test_an_agent_killed_after_a_workers_end_still_ends_what_the_worker_left(
    stack: Stack, tmp_path: Path
) -> None:
    """The child has 5 s to end by itself, and the agent does not live that long: the next one does it."""
    job = stack.submit(EVERYDAY, "detached", str(tmp_path), workers=1)
    notes = stack.home.root / "agent" / "left"
    wait_until((tmp_path / "detached").exists, "the child was started")
    child = int((tmp_path / "detached").read_text())

    def lives() -> bool:
        return is_alive(child, start_ticks(child))

    def is_forgotten() -> bool:
        """All but the note: with a box the next agent would find the worker itself."""
        return bool(list(notes.iterdir())) and not list(stack.home.boxes.glob(f"{job}.r0.*"))

    wait_until(lambda: is_forgotten() or not lives(), "the agent has only noted what to look for")
    agent = stack.kill_part("agent")
    stack.wait_part_back("agent", agent)
    wait_until(lambda: not lives(), "the next agent ends the child")
    wait_until(lambda: not list(notes.iterdir()), "nothing is left to look for")
    assert stack.wait_state(job, "completed", "failed")["state"] == "completed"


def test_a_stop_uses_the_scripts_own_handler(stack: Stack, tmp_path: Path) -> None:
    for flags, name in (((), "SIGTERM"), (("--signal", "usr1"), "SIGUSR1")):
        out = tmp_path / name
        out.mkdir()
        job = stack.submit(EVERYDAY, "saver", str(out))
        wait_until(lambda job=job: stack.status(job)["step"] > 2, "it trains")
        stack.loom("stop", *flags, job)
        assert stack.status(job)["state"] == "stopped"
        saved = [(out / f"saved-{rank}").read_text().split() for rank in (0, 1)]
        assert saved[0] == saved[1] and int(saved[0][0]) > 2, "both handlers ran, at one step"
        assert saved[0][1] == name


def test_what_cannot_work_is_said_once(stack: Stack, tmp_path: Path) -> None:
    def fails(name: str, text: str) -> dict[str, Any]:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        job = stack.submit(str(path))
        return stack.wait_state(job, "failed", "completed")

    broken = fails("broken", "def f(:\n")
    assert broken["restarts"] == 0 and "the script cannot be compiled" in broken["reason"]
    missing = fails("missing", "import nothing_of_this_name\n")
    assert missing["restarts"] == 0 and "a module is missing" in missing["reason"]
    wrong = fails("wrong", "{}['key']\n")
    assert wrong["restarts"] == 1 and "the same KeyError at" in wrong["reason"]


def test_a_small_gpt_with_its_own_checkpoints_is_continued(stack: Stack, tmp_path: Path) -> None:
    """It ends by `max_steps`, is given a later one, is restarted while it runs, and is stopped: the step is
    the script's own iteration all the way, because the state of its optimizer counts it."""
    words = (f"--out_dir={tmp_path}", "--init_from=resume", "--max_iters=1000000", "--nap_s=0.01")
    job = stack.submit(str(SCRIPTS / "small_gpt.py"), *words, flags=("--max-steps", "25"))
    first = stack.wait_state(job, "completed", "failed")
    assert first["state"] == "completed" and first["step"] == 25, first["reason"]

    past = stack.loom("restart", job, "--max-steps", "25", check=None)
    assert past.returncode and "Step 25 is past" in past.stderr
    stack.loom("restart", job, "--max-steps", "43")
    second = stack.wait_state(job, "completed", "failed")
    # A count from the optimizer's state is written four times a second, so the last steps may be missing.
    assert second["state"] == "completed" and 20 < second["step"] <= 43, second["reason"]
    assert second["generation"] == 2 and second["restarts"] == 0
    log = stack.loom("logs", job, "--rank", "0").stdout
    assert "resuming at iteration 20" in log and "saved iteration 50" not in log

    stack.loom("restart", job, "--max-steps", "1000000")
    wait_until(lambda: (stack.status(job)["step"] or 0) >= 51, "it makes steps after those of the first run")
    done = stack.loom("restart", job)
    assert "runs again" in done.stdout
    again = wait_until(
        lambda: (view := stack.status(job))["generation"] == 4 and (view["step"] or 0) > 50 and view,
        "the running job begins again from its newest checkpoint",
    )
    assert again["restarts"] == 0
    stack.loom("stop", job)
    assert stack.status(job)["state"] == "stopped"


def test_bars_move_in_a_terminal_and_are_kept_in_the_file(stack: Stack, tmp_path: Path) -> None:
    env = {name: value for name, value in stack.env.items() if name != "NO_COLOR"} | {"FORCE_COLOR": "1"}
    words = ("--nproc-per-node", "2", "--name", "bars", "--log-dir", str(tmp_path / "logs"))
    halves = {"tqdm": r"tqdm: +50%\|.*?5/10", "rich": r"rich \S+ +60%"}
    command = (str(BIN / "loom"), "run", *words, str(SCRIPTS / "bars.py"), str(tmp_path))
    both = {"0", "1"}
    with Terminal(env, *command) as terminal:
        for bar, half in halves.items():
            wait_until(lambda half=half: ranks_shown(terminal.text, half) == both, f"{bar} is live")
            (tmp_path / bar).touch()
        assert terminal.wait() == 0, terminal.text
        text = terminal.text
    for last in ("tqdm: 100%", r"rich \S+ 100%", "ends"):
        assert ranks_shown(text, last) == both, text
    assert "\x1b[2K" in text and "\x1b[?25l" not in text, "only the screen's own movements"
    for rank in "01":
        raw = (tmp_path / "logs" / "bars" / rank / "stdout.log").read_bytes()
        assert raw.count(b"\r") > 10 and b"\x1b[?25l" in raw, "as the script wrote it"
    lines = stack.loom("logs", "bars").stdout.splitlines()
    for rank in "01":
        mine = [line.split("] ", 1)[1] for line in lines if line.startswith(f"[rank {rank}]")]
        words_ = [line.split()[0] for line in mine if not line.startswith("[loom]")]
        assert words_ == ["begins", "tqdm:", "rich", "ends"], lines
    assert "\x1b" not in "".join(lines) and not any("50%" in line for line in lines)
