"""What another try cannot mend is not tried again, as long as the job has never made a step."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, Story

from torchloom.model.fleet import JobState
from torchloom.model.worker import EndRecord


def raised(kind: str, message: str = "", line: int = 3) -> EndRecord:
    trace = f'Traceback …\n  File "/home/me/train.py", line {line}, in <module>\n{kind}: {message}'
    return EndRecord(how="exception", code=1, exception=kind, message=message, traceback=trace)


def fails(story: Story, end: EndRecord, steps: int = 0) -> None:
    """Rank 0 ends so; the rest of the generation is ended, and the next one is up if there is one."""
    story.exit(0, FAILED, end=end, steps=steps)
    story.end_rest()
    if story.state() is JobState.BACKOFF:
        story.fire()
    if story.state() is JobState.STARTING:
        story.bring_up()


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (raised("SyntaxError", "invalid syntax"), "the script cannot be compiled"),
        (raised("IndentationError", "unexpected indent"), "the script cannot be compiled"),
        (raised("ModuleNotFoundError", "No module named 'x'"), "a module is missing"),
        (raised("ImportError", "cannot import name 'y'"), "an import failed"),
        (raised("AssertionError", "Torch not compiled with CUDA enabled"), "no CUDA device"),
        (raised("RuntimeError", "No CUDA GPUs are available"), "no CUDA device"),
        (raised("RuntimeError", "Found no NVIDIA driver on your system."), "no CUDA device"),
        (
            raised("ValueError", "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
            "no CUDA device",
        ),
    ],
)
def test_never_tried_again(end: EndRecord, why: str) -> None:
    story = Story(a=8)
    story.run(workers=2)
    fails(story, end)
    assert story.state() is JobState.FAILED and story.job().restarts == 0
    assert f"not restarted: {why}" in story.job().reason or why in story.job().reason
    assert story.incident().decided.action == "fail"
    story.check_replay()


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (raised("KeyError", "'missing'"), "the same KeyError at /home/me/train.py, line 3, twice before"),
        (raised("my.package.Wrong", "shape 3"), "the same Wrong at /home/me/train.py, line 3, twice before"),
        (EndRecord(how="exit", code=2), "the same exit code 2, twice before the first step"),
        (EndRecord(how="exit", code=1, message="no config"), "the same exit code 1, twice before the first"),
    ],
)
def test_the_same_error_at_the_same_place_is_tried_once_more(end: EndRecord, why: str) -> None:
    story = Story(a=8)
    story.run(workers=2)
    fails(story, end)
    assert story.state() is JobState.RUNNING and story.job().restarts == 1
    fails(story, end)
    assert story.state() is JobState.FAILED and why in story.job().reason
    story.check_replay()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (raised("KeyError", "'a'"), raised("KeyError", "'a'", line=9)),
        (raised("KeyError", "'a'"), raised("ValueError", "'a'")),
        (raised("ConnectionError", "x"), raised("ConnectionError", "x")),
        (raised("requests.exceptions.ReadTimeout", "x"), raised("requests.exceptions.ReadTimeout", "x")),
        (raised("torch.OutOfMemoryError", "x"), raised("torch.OutOfMemoryError", "x")),
        (raised("RuntimeError", "Address already in use"), raised("RuntimeError", "Address already in use")),
        (EndRecord(how="exit", code=75), EndRecord(how="exit", code=75)),
        (EndRecord(how="exit", code=1), EndRecord(how="exit", code=1)),
        (
            EndRecord(how="exit", code=1, message="the tracker timed out"),
            EndRecord(how="exit", code=1, message="the tracker timed out"),
        ),
    ],
)
def test_what_may_pass_has_its_whole_budget(first: EndRecord, second: EndRecord) -> None:
    story = Story(a=8)
    story.run(workers=2)
    fails(story, first)
    fails(story, second)
    assert story.state() is JobState.RUNNING and story.job().restarts == 2


def test_a_job_that_has_stepped_has_its_whole_budget() -> None:
    story = Story(a=8)
    story.run(workers=2)
    fails(story, raised("KeyError", "'a'"), steps=3)
    for _ in range(2):
        fails(story, raised("ModuleNotFoundError", "No module named 'x'"))
    assert story.state() is JobState.RUNNING and story.job().restarts == 3


def test_a_killed_worker_has_its_whole_budget() -> None:
    story = Story(a=8)
    story.run(workers=1)
    for _ in range(2):
        story.exit(0, KILLED)
        story.fire()
        story.bring_up()
    assert story.state() is JobState.RUNNING


def test_the_limit_that_is_said_is_the_one_that_counts() -> None:
    story = Story(a=8)
    story.run(workers=1)
    said = []
    for _ in range(3):
        story.exit(0, KILLED)
        said.append(story.incident().decision.partition(",")[0])
        story.fire()
        story.bring_up()
    assert said == [f"restart {n} of at most 3 without progress" for n in (1, 2, 3)]
    story.exit(0, KILLED, steps=50)
    assert "restart 4 of at most 10, at once" in story.incident().decision
