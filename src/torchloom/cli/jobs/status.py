"""`loom status`: one job with its workers and incidents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom.cli.options import JobArgument, JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import JobDetail, WorkerView

EXAMPLES = (
    ("loom status train-3f9a", "state, workers, incidents"),
    ("loom status train-3f9a --watch", "until it ends"),
    ("loom status train-3f9a --json | jq .steps_per_s", "one number"),
)

_UNSEEN_S = 120.0
"""A job without a step for this long may train where nobody sees it: in a child process, say."""
_IDLE_S = 5.0
"""A rank without progress for this long, and in no collective, is stuck in other code."""


def command(
    job: JobArgument,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one job: state, progress, every worker, incidents."""
    from torchloom.cli.show import output

    client = api()
    if watch:
        from torchloom.cli.show import watching

        watching.watch(
            lambda: client.job(job),
            _show,
            lines=(lambda view: [view]) if as_json else None,
            done=lambda view: view["ended"],
        )
    elif as_json:
        output.show_json(client.job(job))
    else:
        _show(client.job(job))


def _show(view: JobDetail) -> None:
    from torchloom.cli.show import output

    for name, text in _facts(view):
        output.fact(name, text)
    print()
    output.table(
        ("RANK", "STATE", "NODE", "PID", "STEPS", "STEP TIME", "PHASE", "DEVICES", "DOING"),
        (_worker(worker) for worker in view["workers"]),
        nothing="no workers yet",
        spare=("DEVICES", "PID", "STATE", "NODE"),
    )
    if view["incident_list"]:
        print()
        from torchloom.cli.fleet.incidents import show

        show(view["incident_list"])


def _facts(view: JobDetail) -> list[tuple[str, str]]:
    from torchloom.cli.show import output

    made = output.steps(view)
    progress = f"training step {made}" if view["step_is_training"] else f"{made} steps of this generation"
    if not view["step"] and (view["ended"] or view["elapsed_s"] > _UNSEEN_S):
        progress = "no step seen since the last restart"
        if not view["restarts"]:
            progress = "no step seen: torchloom counts steps of torch optimizers in the workers themselves"
    if view["steps_per_s"] > 0:
        progress += f", {output.rate(view['steps_per_s'])}"
    facts = [
        ("job", view["id"]),
        ("state", f"{output.state(view)} – {view['reason']}"),
        ("program", " ".join([view["program"], *view["args"]])),
        ("progress", progress),
        ("restarts", _restarts(view)),
        ("loss", output.number(view["last_loss"])),
        ("goodput", f"{output.percent(view['goodput'])} of {output.seconds(view['elapsed_s'])}"),
        ("started", f"{output.clock(view['started_at_ns'])}, by {view['by']}"),
    ]
    if view["standby"]:
        where = ", ".join(view["spares"]) or "no other node has room for it"
        facts.append(("standby", f"{len(view['spares'])} of {view['standby']}: {where}"))
    if view["config_version"]:
        facts.append(("config", f"version {view['config_version']}; see `loom config {view['id']}`"))
    if view["operation"]:
        facts.append(("in progress", f"see `loom operations {view['id']} {view['operation']}`"))
    if view["checkpoint_step"] is not None:
        every = view["checkpoint_interval"]
        rhythm = f", every {every} steps" if every else ""
        facts.append(("checkpoint", f"step {view['checkpoint_step']}{rhythm}"))
    if view["restoring"] is not None:
        facts.append(("restoring", f"going back to step {view['restoring']}"))
    if view["labels"]:
        facts.append(("labels", ", ".join(f"{key}={value}" for key, value in view["labels"].items())))
    for worker in view["workers"]:
        if worker["log_lost_bytes"]:
            facts.append(("log", log_gap(worker)))
    facts += [("memory", text) for text in missing_copies(view["workers"])]
    if view["eta_s"] is not None:
        facts.insert(4, ("eta", output.time_left(view["eta_s"])))
    return facts


def log_gap(worker: WorkerView) -> str:
    """What is missing in the log of a rank."""
    lines, size = worker["log_lost_lines"], worker["log_lost_bytes"]
    return f"{lines} lines ({size} bytes) of rank {worker['rank']} are missing: there was no room on the disk"


def missing_copies(workers: Sequence[WorkerView]) -> list[str]:
    """Ranks whose states in memory would be lost with their node, by reason."""
    by_reason: dict[str, list[str]] = {}
    for worker in workers:
        if worker["copy_trouble"]:
            by_reason.setdefault(worker["copy_trouble"], []).append(str(worker["rank"]))
    return [
        f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} would be lost with the node: {why}"
        for why, ranks in by_reason.items()
    ]


def _restarts(view: JobDetail) -> str:
    """The number of restarts so far, and the limits that fail the job."""
    text = f"{view['restarts']} of {view['max_restarts']}, generation {view['generation']}"
    if view["fruitless"]:
        text += (
            f"; {view['fruitless']} in a row without progress, the job fails after {view['max_fruitless']}"
        )
    return text


def _worker(worker: WorkerView) -> tuple[str, ...]:
    from torchloom.cli.show import output

    return (
        f"{worker['rank']}",
        worker["state"],
        worker["node"],
        f"{worker['pid'] or '–'}",
        f"{worker['steps']}",
        output.step_time(worker["step_s"]),
        worker["phase"] or "–",
        ", ".join(device["device"] for device in worker["devices"]) or "–",
        doing(worker),
    )


def doing(worker: WorkerView) -> str:
    """What a worker is doing: how it ended, which collective it waits in, or that it is in none."""
    from torchloom.cli.show import output

    if worker["blind"]:
        return f"no telemetry: {worker['blind']}"
    if worker["exit"]:
        return worker["exit"]
    last = worker["collective"]
    if worker["phase"] == "paused":
        return "paused until the job is resumed"  # what it did last is over
    if worker["in_collective_s"] > 1:
        return f"{last} for {output.seconds(worker['in_collective_s'])}"
    if last and worker["idle_s"] > _IDLE_S and worker["phase"] != "control-wait":
        # Its last collective is over; somebody who looks at a hang wants to know which ranks are not in one.
        return f"outside collectives for {output.seconds(worker['idle_s'])}, after {last}"
    return last
