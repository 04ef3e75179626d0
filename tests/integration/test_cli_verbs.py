"""The verbs of the command line on a real stack: JSON, exit codes, streams, tokens, contexts, completion."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from loom_home import LOOM, LoomHome, wait_for


@pytest.fixture(scope="module")
def loom() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-cli-") as root:
        made = LoomHome(Path(root) / "home")
        made.loom("up", "--port", "0")
        try:
            yield made
        finally:
            made.loom("down", "--stop-jobs")
        wait_for(lambda: not made.leftovers(), f"nothing left: {made.leftovers()}")


@pytest.fixture(scope="module")
def job(loom: LoomHome) -> str:
    return loom.sleeper("--nproc-per-node", "2", "-l", "team=vision", name="sleeper")


def shell_job(loom: LoomHome, name: str, text: str, *flags: str) -> str:
    words = ("submit", "--name", name, "--spawn", "cold", *flags, "--no-python", "sh", "-c", text)
    return loom.loom(*words).stdout.strip()


def with_env(loom: LoomHome, **env: str) -> LoomHome:
    other = LoomHome(loom.home.root)
    other.env |= env
    return other


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "-l", "nobody=here"),
        ("ps", "--state", "failed", "-l", "nobody"),
        ("events", "--kind", "no-such-kind"),
        ("incidents", "sleeper"),
    ],
)
def test_nothing_is_an_empty_list(loom: LoomHome, job: str, words: tuple[str, ...]) -> None:
    done = loom.loom(*words, "--json")
    assert json.loads(done.stdout) == [] and done.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("ps",),
        ("status", "sleeper"),
        ("logs", "sleeper"),
        ("incidents",),
        ("nodes",),
        ("devices",),
        ("events",),
        ("context", "list"),
        ("token", "list"),
        ("token", "whoami"),
        ("purge", "--dry-run"),
    ],
)
def test_json_is_all_there_is_on_stdout(loom: LoomHome, job: str, words: tuple[str, ...]) -> None:
    done = loom.loom(*words, "--json")
    json.loads(done.stdout)
    assert done.stderr == "" and "\x1b" not in loom.loom(*words).stdout


def test_exit_codes(loom: LoomHome, job: str) -> None:
    loom.loom("status", "nope", code=3)
    loom.loom("status", "../../etc/passwd", code=2)
    loom.loom("status", code=2)
    loom.loom("ps", "--state", "bogus", code=2)
    loom.loom("wait", job, "--for", "bogus", code=2)
    loom.loom("delete", job, code=5)
    loom.loom("wait", job, "--timeout", "1s", code=6)
    loom.loom("ps", "--context", "nope", code=3)
    with_env(loom, LOOM_TOKEN="wrong").loom("ps", code=4)
    with_env(loom, LOOM_ADDRESS="127.0.0.1:9").loom("ps", code=6)
    with_env(loom, LOOM_ADDRESS="far.example:9").loom("ps", code=4)


def test_no_error_is_a_stack_trace(loom: LoomHome, job: str) -> None:
    for words, code in ((("status", "nope"), 3), (("logs", job, "--rank", "77"), 2), (("bogus",), 2)):
        error = loom.loom(*words, code=code).stderr
        assert error and "Traceback" not in error


def test_mistakes_are_told_in_the_words_of_the_command_line(loom: LoomHome, job: str) -> None:
    nobody = with_env(loom, LOOM_ADDRESS="127.0.0.1:9")
    said = nobody.loom("probe", job, "--within", "5h", code=2).stderr
    assert said == "loom: --within is 0.05 s to 30 s, not 5h\n", "before anybody is asked"
    said = loom.loom("stop", job, "--grace", "-3", code=2).stderr
    assert said == "loom: --grace must be at least 0.\n"


def test_filters(loom: LoomHome, job: str) -> None:
    assert loom.loom("ps", "-q", "-l", "team=vision").stdout.split() == [job]
    assert loom.loom("ps", "-q", "-l", "team").stdout.split() == [job]
    assert loom.loom("ps", "-q", "--active", "--state", "running,waiting").stdout.split() == [job]
    assert loom.loom("ps", "-q", "-l", "team=other").stdout == ""
    assert loom.json("status", job)["labels"] == {"team": "vision"}


def test_waiting_for_an_end(loom: LoomHome) -> None:
    good = shell_job(loom, "good", "sleep 0.2")
    bad = shell_job(loom, "bad", "exit 3", "--max-restarts", "0")
    assert "completed" in loom.loom("wait", good).stdout
    assert "failed" in loom.loom("wait", bad, code=1).stderr
    assert json.loads(loom.loom("wait", bad, "--for", "ended", "--json").stdout)["state"] == "failed"
    loom.loom("wait", good, bad, "--for", "state=completed", code=1)
    assert loom.loom("purge", "--older-than", "0", "--state", "failed", "--dry-run").stdout == (
        f"{bad} would be deleted\n"
    )
    assert loom.json("purge", "--older-than", "0", "--state", "failed")["jobs"] == [bad]
    loom.loom("status", bad, code=3)
    assert loom.loom("delete", good, "--checkpoints").stdout == f"{good} deleted\n", "it had none"
    assert "deleted" in loom.loom("wait", good, "--for", "deleted").stdout


def test_a_running_job_is_deleted_by_force(loom: LoomHome) -> None:
    loom.sleeper(name="doomed")
    assert loom.loom("delete", "doomed", "--force", "--json").stdout == '{"job": "doomed", "deleted": true}\n'
    loom.loom("status", "doomed", code=3)


def test_logs_by_text_and_as_lines_of_json(loom: LoomHome) -> None:
    name = shell_job(loom, "talker", "echo first; echo second; echo third")
    loom.loom("wait", name)
    assert loom.loom("logs", name, "--grep", "second").stdout == "[rank 0] second\n"
    lines = [json.loads(line) for line in loom.loom("logs", name, "-f", "--json").stdout.splitlines()]
    assert lines[-1]["event"] == "end" and "third" in "".join(line.get("text", "") for line in lines)


def test_events_are_followed_until_interrupted(loom: LoomHome, job: str) -> None:
    follower = loom.start("events", "-f", "--json", "--tail", "0", "--topic", "job")
    assert follower.stdout is not None
    try:
        # The stream is open as soon as something new comes out: jobs are submitted until one does.
        os.set_blocking(follower.stdout.fileno(), False)
        seen = ""

        def heard() -> bool:
            nonlocal seen
            shell_job(loom, f"eventful-{len(loom.json('ps'))}", "true")
            # From the descriptor: a text stream that would block cannot say so.
            with contextlib.suppress(BlockingIOError):
                seen += os.read(follower.stdout.fileno(), 1 << 20).decode()  # type: ignore[union-attr]
            return "job-submitted" in seen and seen.endswith("\n")

        wait_for(heard, "an event of a job")
        follower.send_signal(signal.SIGINT)
        follower.wait(timeout=120)
    finally:
        follower.kill()
        follower.communicate()
    assert follower.returncode == 130
    assert all("job" in json.loads(line)["topics"] for line in seen.splitlines())


def test_tokens_with_names_and_roles(loom: LoomHome, job: str) -> None:
    made = loom.loom("token", "create", "reader")
    reader = with_env(loom, LOOM_TOKEN=made.stdout.strip())
    assert reader.loom("token", "whoami").stdout == "reader (read)\n"
    assert reader.loom("ps", "-q", "-l", "team").stdout.split() == [job]
    reader.loom("stop", job, code=4)
    reader.loom("token", "list", code=4)
    assert {token["name"] for token in loom.json("token", "list")} >= {"reader"}
    assert made.stdout.strip() not in loom.loom("token", "list", "--json").stdout
    loom.loom("token", "remove", "reader")
    reader.loom("ps", code=4)
    assert loom.loom("token", "show").stdout.strip() == loom.home.token_file.read_text().strip()


def test_a_context_is_another_cluster(loom: LoomHome, job: str) -> None:
    token = loom.loom("token", "show").stdout.strip()
    port = json.loads((loom.home.parts_dir / "plan.json").read_bytes())["port"]
    with tempfile.TemporaryDirectory(prefix="loom-far-") as far_root:
        far = LoomHome(Path(far_root), LOOM_TOKEN=token)
        far.loom("context", "add", "near", f"http://127.0.0.1:{port}")
        del far.env["LOOM_TOKEN"]
        far.loom("ps", code=3)
        assert job in far.loom("ps", "-q", "--context", "near").stdout.split()
        assert job in far.loom("--context", "near", "ps", "-q").stdout.split()
        far.loom("context", "use", "near")
        assert far.loom("token", "whoami").stdout.startswith("admin")
        # A job is submitted there, and no stack is started here.
        words = ("submit", "--name", "from-far", "--spawn", "cold", "--no-python", "true")
        assert far.loom(*words).stdout == "from-far\n"
        loom.loom("wait", "from-far")
        far.loom("ps", "--context", "local", code=3)
        assert not (far.home.root / "parts" / "plan.json").exists()


def test_bash_completes_ids(loom: LoomHome, job: str) -> None:
    script = f"""
    PATH={Path(LOOM).parent}:$PATH
    eval "$(loom completion bash)"
    COMP_WORDS=(loom status slee); COMP_CWORD=2; _loom; echo "${{COMPREPLY[@]}}"
    COMP_WORDS=(loom logs {job} --rank ''); COMP_CWORD=4; _loom; echo "${{COMPREPLY[@]}}"
    """

    def completed() -> bool:
        done = subprocess.run(["bash", "-c", script], env=loom.env, capture_output=True, text=True)
        return done.stdout.splitlines() == [job, "0 1"]

    # Nothing is offered when the service takes longer than a person waits, as it may on a busy machine.
    wait_for(completed, "the id and the ranks")


def test_a_pipe_that_closes_is_no_error(loom: LoomHome, job: str) -> None:
    command = f"set -o pipefail; {LOOM} ps | head -n 1; {LOOM} events | true"
    done = subprocess.run(["bash", "-c", command], env=loom.env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("JOB")


def test_a_shell_in_a_pipe(loom: LoomHome, job: str) -> None:
    done = subprocess.run(
        [LOOM, "shell"],
        input=f"ps -q -l team\n# nothing\nloom status {job} --json\nstatus nope\n",
        env=loom.env,
        capture_output=True,
        text=True,
    )
    first, _, rest = done.stdout.partition("\n")
    assert first == job and json.loads(rest)["id"] == job
    assert done.returncode == 3 and "nope" in done.stderr


def test_logs_since_a_time(loom: LoomHome, tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f"echo early; while [ ! -e {go} ]; do sleep 0.05; done; echo late; sleep 300"
    job = shell_job(loom, "timed", text)

    def says(line: str) -> bool:
        logs = loom.request("GET", f"/jobs/{job}/logs?rank=0")[2]["logs"]
        return any(line in log["text"].splitlines() for log in logs)

    wait_for(lambda: says("early"), "the first line")

    def now_without_early() -> str:
        now = datetime.now(UTC).isoformat()
        return "" if "early" in loom.loom("logs", job, "--since", now).stdout else now

    then = wait_for(now_without_early, "a time after the first line")
    go.touch()
    wait_for(lambda: says("late"), "the second line")
    for words in (("--since", then), ("--since", then, "--tail", "50"), ("--since", then, "--grep", "e")):
        shown = loom.loom("logs", job, *words).stdout
        assert shown.split()[-1:] == ["late"] and "early" not in shown
    assert "early" in loom.loom("logs", job, "--since", "1h").stdout
    assert "is not a time" in loom.loom("logs", job, "--since", "2026-99-99", code=2).stderr
    loom.loom("stop", job, "--kill")
    followed = loom.loom("logs", job, "-f", "--since", then).stdout
    assert "late" in followed and "early" not in followed
