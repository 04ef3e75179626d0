"""Turns a command line into the body of POST /jobs."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from torchloom.cli.jobs import flags
from torchloom.cli.jobs.forwarding import forward
from torchloom.cli.show.states import pairs
from torchloom.errors import NotFound, UsageError
from torchloom.model.ids import check_token, token_from

if TYPE_CHECKING:
    from torchloom.client.schema import JobRequest, LimitsBody, PolicyBody


def job_request(
    options: argparse.Namespace, env: Mapping[str, str], cwd: str, *, whole_shell: bool = False
) -> JobRequest:
    """The whole request. Raises with one sentence for a mistake. `whole_shell`: forward all variables."""
    kind: Literal["script", "module", "command"]
    kind = "module" if options.module else "command" if options.no_python else "script"
    if "LOOM_ADDRESS" not in env:
        _check_target(kind, options.script, cwd)
    if options.min_replicas is not None and options.replicas is None:
        raise UsageError("--min-replicas is for torchft jobs: use it with --replicas N.")
    forwarded = forward(env, options.env, whole_shell or options.env_all)
    body: JobRequest = {
        "name": job_name(options, env),
        "program": {"kind": kind, "target": options.script, "args": script_args(options)},
        "cwd": cwd,
        "workers_per_node": flags.worker_count(options, env),
        "nodes": flags.node_count(options, env),
        "max_workers": options.max_workers,
        "standby": options.standby,
        "min_workers": flags.least_workers(options, env),
        "interpreter": interpreter(options.python, env),
        "spawn": options.spawn,
        "preload": [name for names in options.preload for name in names.split(",") if name],
        "max_restarts": flags.restarts(options, env),
        "max_fruitless": flags.fruitless(options),
        "stop_grace_s": options.shutdown_timeout,
        "pin_cores": options.pin_cores,
        "log_dir": str(Path(cwd, options.log_dir)) if options.log_dir else None,
        "expected_steps": options.expect_steps,
        "env": forwarded.env | ({"LOOM_RESUME": options.resume} if options.resume else {}),
        "env_withheld": forwarded.withheld,
        "labels": pairs(options.label, "--label"),
        "max_steps": options.max_steps,
        "queue": options.queue,
    }
    if options.policy is not None:
        from torchloom.cli.jobs.policy import read

        body["policy"] = cast("PolicyBody", read(Path(cwd, options.policy)))
    body |= settings(env)
    limits: LimitsBody = body.get("limits", {})
    if options.hang_report is not None:
        limits["hang_report_s"] = options.hang_report
    if options.hang_act is not None:
        limits["hang_act_s"] = options.hang_act
    if limits:
        body["limits"] = limits
    try:
        repr(body).encode()
    except UnicodeEncodeError:
        raise UsageError("The command line or a path holds bytes that are not UTF-8.") from None
    return body


def settings(env: Mapping[str, str]) -> JobRequest:
    """What HEARTBEAT_TIMEOUT, CHECKPOINT_DIR and CHECKPOINT_EVERY mean for the control service; workers read
    the variables themselves. Only the workers use an interval that is not a number of steps."""
    found: JobRequest = {}
    if env.get("HEARTBEAT_TIMEOUT", "").strip():
        from torchloom.api.defaults import seconds

        found["limits"] = {"heartbeat_timeout_s": seconds(env, "HEARTBEAT_TIMEOUT")}
    directory, every = env.get("CHECKPOINT_DIR", "").strip(), env.get("CHECKPOINT_EVERY", "").strip()
    if directory or every:
        steps = int(every) if every.isdecimal() and 0 < int(every) <= 2**53 else None
        found["checkpoint"] = {"directory": directory or None, "every": steps}
    return found


def choose_place(options: argparse.Namespace) -> None:
    """Apply --home and --context to this process."""
    from torchloom.cli.access.contexts import choose

    if options.home:
        os.environ["LOOM_HOME"] = os.path.abspath(os.path.expanduser(options.home))
    choose(options.context, home_given=bool(options.home))


def script_args(options: argparse.Namespace) -> list[str]:
    return list(options.script_args)


def job_name(options: argparse.Namespace, env: Mapping[str, str]) -> str:
    """--name, else JOB_ID, else the script's name with a unique suffix.

    Always chosen here, so that the service recognises a repeated request.
    """
    given = options.name or env.get("JOB_ID")
    if given:
        return check_token(given, "job name")
    stem = options.script.rpartition(".")[2] if options.module else Path(options.script).stem
    return f"{token_from(stem, 'job')}-{secrets.token_hex(3)}"


def _check_target(kind: str, target: str, cwd: str) -> None:
    if kind == "script":
        path = Path(cwd, target)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise UsageError(f"{target} is a directory without __main__.py, not a script.")
        if not path.exists():
            raise NotFound(f"The script {target} does not exist in {cwd}.")
        if not os.access(path, os.R_OK):
            raise UsageError(f"The script {target} cannot be read.")
    elif kind == "command" and shutil.which(target, path=f"{os.environ.get('PATH', '')}:{cwd}") is None:
        raise NotFound(f"The program {target} is not on PATH.")


def interpreter(given: str | None, env: Mapping[str, str]) -> str:
    """--python, else that of the active virtual environment, else our own."""
    if given:
        found = shutil.which(given)
        if found is None:
            raise NotFound(f"The interpreter {given} does not exist.")
        return os.path.abspath(found)
    active = env.get("VIRTUAL_ENV")
    if active and os.path.realpath(active) != os.path.realpath(sys.prefix):
        python = Path(active, "bin", "python")
        if python.exists():
            return str(python)
    return sys.executable
