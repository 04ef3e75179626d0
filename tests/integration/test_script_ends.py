"""Real workers whose script fails: it is said while the process is still ending, and the process is let be.

A `gate` (a file) holds up the end of the process, as a hook that sends a report would.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_stage import Stage, run, until

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.model.events import ScriptFailed, WorkerExited
from torchloom.model.job import Program

BEGIN = """
import atexit, os, sys, threading, time, traceback

def wait(*_):
    while not os.path.exists("gate"):
        time.sleep(0.01)
"""
HOOK = """
def hook(kind, value, trace):
    frames = ",".join(f.name for f in traceback.extract_tb(trace))
    print("hook", kind.__name__, value, frames, sys.exc_info()[0], flush=True)
    wait()
    sys.__excepthook__(kind, value, trace)

sys.excepthook = hook
"""
SCRIPTS = {
    "raises": HOOK + "def f():\n    raise ValueError('bad batch')\nf()",
    "exits": "atexit.register(wait)\nsys.exit(3)",
    "text": "atexit.register(wait)\nsys.exit('no data')",
    "good": "atexit.register(wait)\nsys.exit(0)",
    "thread": "threading.Thread(target=wait).start()\nraise ValueError('only the main thread')",
    "daemon": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "atexit.register(wait)\nraise KeyError('x')",
    "lost": "atexit.register(wait)\nraise RuntimeError('Connection closed by peer [127.0.0.1]:1')",
    "caught": "try:\n    raise ValueError('caught')\nexcept ValueError:\n    wait()",
    "child": "if os.fork() == 0:\n    raise ValueError('of a child')\nwait()",
    "at once": "os._exit(4)",
}
EARLY = {"raises": 1, "exits": 3, "text": 1, "daemon": 1}
CODES = {**dict.fromkeys(SCRIPTS, 1), "exits": 3, "good": 0, "caught": 0, "child": 0, "at once": 4}


def script(stage: Stage, text: str) -> Program:
    path = stage.work / f"s{next(stage.numbers)}.py"
    path.write_text(BEGIN + text)
    return Program("script", str(path))


def test_what_is_told_of_a_script_before_its_process_has_ended(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        jobs = {f"job-{number}": name for number, name in enumerate(SCRIPTS)}
        pids = {}
        for job, name in jobs.items():
            started = await stage.start(script(stage, SCRIPTS[name]), job=job)
            pids[name] = started.workers[0].pid
        told = await until(lambda: len(found := stage.events(ScriptFailed)) == len(EARLY) and found)
        assert {jobs[e.ref.job]: e.end.code for e in told} == EARLY
        raised = next(e for e in told if jobs[e.ref.job] == "raises")
        assert (raised.end.exception, raised.end.message) == ("ValueError", "bad batch")
        assert raised.end.at_ns <= raised.at_ns and "in f\n" in raised.end.traceback
        assert all(is_alive(pids[name], start_ticks(pids[name])) for name in EARLY), "they are still ending"
        await until(lambda: len(stage.events(WorkerExited)) == 1)  # who did not wait
        (stage.work / "gate").touch()
        await until(lambda: len(stage.events(WorkerExited)) == len(SCRIPTS))
        assert {jobs[e.ref.job]: e.exit.code for e in stage.events(WorkerExited)} == CODES
        assert len(stage.events(ScriptFailed)) == len(EARLY), "once of each"

    run(tmp_path, scene)


def test_a_hook_of_the_script_is_called_as_ever_and_is_given_its_time(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(script(stage, SCRIPTS["raises"]))
        ref = started.workers[0].ref
        await stage.event(ScriptFailed)
        ending = asyncio.create_task(stage.end(ref, let_end=True, grace_s=600.0))
        log = stage.home.jobs_dir / "tiny" / "rank-0.log"
        await until(lambda: "hook ValueError" in log.read_text())
        await asyncio.sleep(0.2)  # in which it would have been ended, had it been signalled
        assert stage.events(WorkerExited) == [] and not ending.done()
        (stage.work / "gate").touch()
        await ending
        assert (await stage.exit_of(0)).exit.code == 1
        said = log.read_text()
        assert said.count("hook ValueError") == 1 and "hook ValueError bad batch <module>,f None" in said
        assert said.endswith("ValueError: bad batch\n")

    run(tmp_path, scene)


def test_one_that_does_not_end_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(script(stage, SCRIPTS["raises"]))
        await stage.event(ScriptFailed)
        await stage.end(started.workers[0].ref, let_end=True, grace_s=0.05)
        gone = await stage.exit_of(0)
        assert gone.exit.signal == 9 and gone.end is not None and gone.end.exception == "ValueError"

    run(tmp_path, scene)


def test_it_is_told_once_also_by_the_next_agent(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        await stage.start(script(stage, SCRIPTS["exits"]))
        await stage.event(ScriptFailed)
        await stage.crash_agent()
        await stage.start_agent()
        (stage.work / "gate").touch()
        assert (await stage.exit_of(0)).exit.code == 3
        assert len(stage.events(ScriptFailed)) == 1

    run(tmp_path, scene)
