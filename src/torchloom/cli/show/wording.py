"""Rewrites the service's errors about request fields in terms of command-line options.

Owns the table from fields to options. A field without an option (a newer API, a policy file) keeps its name.
"""

from __future__ import annotations

from torchloom.errors import LoomError, UsageError

_OPTIONS = {
    "checkpoint.directory": "CHECKPOINT_DIR",
    "checkpoint.every": "CHECKPOINT_EVERY",
    "cwd": "the current directory",
    "duration_s": "--for",
    "env": "the environment",
    "expected_steps": "--expect-steps",
    "grace_s": "--grace",
    "interpreter": "--python",
    "labels": "--label",
    "limits.hang_act_s": "--hang-act",
    "limits.hang_report_s": "--hang-report",
    "limits.heartbeat_timeout_s": "HEARTBEAT_TIMEOUT",
    "nodes": "--nnodes",
    "older_than_s": "--older-than",
    "program.args": "the script's arguments",
    "program.target": "the script",
    "ranks": "--rank",
    "step": "the step",
    "stop_grace_s": "--shutdown-timeout",
    "values": "the settings",
    "version": "the version",
    "within_s": "--within",
    "workers": "the number of workers",
    "workers_per_node": "--nproc-per-node",
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            *("amount", "at_step", "max_restarts", "max_steps", "max_workers", "min_workers", "name"),
            *("peer", "preload", "seed", "standby", "why"),
        )
    },
}


def sentence(error: LoomError) -> str:
    """The error in the words of the command line."""
    if not isinstance(error, UsageError) or not error.fault:
        return str(error)
    said = f"{option_of(error.field)} {error.fault}"
    return said[:1].upper() + said[1:]


def option_of(field: str) -> str:
    """The option that a field comes from; for `ranks.3` the one of `ranks`."""
    name = field
    while name:
        if name in _OPTIONS:
            return _OPTIONS[name]
        name = name.rpartition(".")[0]
    return field
