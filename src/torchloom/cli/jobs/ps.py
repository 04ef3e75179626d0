"""`loom ps`: active jobs, one line each; with -a also those that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JsonOption, LabelOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import JobSummary

EXAMPLES = (
    ("loom ps", "active jobs"),
    ("loom ps -a", "all jobs, active ones first"),
    ("loom ps --active --watch", "live view of active jobs"),
    ("loom ps --state failed,stopped -l team=vision", "by state and label"),
    ("loom ps --active -q | xargs loom stop", "ids only"),
)


def command(
    everything: Annotated[bool, option("--all", "-a", help="Also jobs that have ended.")] = False,
    active: Annotated[
        bool, option("--active", help="Only jobs that have not ended, also with -q and --json.")
    ] = False,
    state: Annotated[
        list[str] | None,
        option("--state", metavar="STATE", help="Only jobs in this state; repeatable."),
    ] = None,
    label: LabelOption = None,
    sort: Annotated[
        str, option("--sort", metavar="BY", help="submitted, ended, id or state; -BY for the reverse.")
    ] = "submitted",
    quiet: Annotated[bool, option("--quiet", "-q", help="Print only the ids.")] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs: state, progress and restarts."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import Sort, State, check
    from torchloom.errors import UsageError

    states, order = check(state or (), State, "--state"), check([sort], Sort, "--sort")[0]
    client = api()

    if active and everything:
        raise UsageError("--active and --all exclude each other", hint="leave one of them out")

    def read() -> list[JobSummary]:
        return client.all_jobs(active=active, state=states, label=label, sort=order)

    def show(jobs: list[JobSummary]) -> None:
        if quiet:
            print("".join(f"{job['id']}\n" for job in jobs), end="")
        else:
            _show(jobs, ended_too=everything or bool(states), only_active=active)

    if watch:
        from torchloom.cli.show import watching

        watching.watch(read, show, lines=list if as_json else None)
    elif as_json:
        output.show_json(read())
    else:
        show(read())
        output.show_troubles(client)


def _show(jobs: list[JobSummary], ended_too: bool, only_active: bool = False) -> None:
    """Active jobs first. Those that have ended are counted if nobody asked for them."""
    from torchloom.cli.show import output

    ended = [job for job in jobs if job["ended"]]
    active = [job for job in jobs if not job["ended"]]
    shown = [*active, *ended] if ended_too else active
    rest = 0 if ended_too else len(ended)
    if shown:
        _table(shown)
    elif jobs or only_active:
        print("no active jobs")
    else:
        print("no jobs; start one with `loom run train.py`")
    if rest:
        print(
            f"{rest} ended job{'s' if rest != 1 else ''}: `loom ps -a` shows {'them' if rest != 1 else 'it'}"
        )
    if output.on_terminal() and any(job["step"] and job["last_loss"] is None for job in active):
        print("LOSS is what the script reports with loom.log(loss=…)")


def _table(jobs: list[JobSummary]) -> None:
    from torchloom.cli.show import output

    columns = ("JOB", "STATE", "STEP", "SPEED", "LOSS", "ETA", "WORKERS", "RESTARTS", "GOODPUT", "TIME")
    # Most jobs are never changed: then there is nothing to show.
    changed = any(job["config_version"] for job in jobs)
    output.line_table(
        (*columns, *(("CONFIG",) if changed else ()), "REASON"),
        [
            (
                job["id"],
                output.state(job),
                output.steps(job),
                output.rate(job["steps_per_s"]),
                output.number(job["last_loss"]),
                output.time_left(job["eta_s"]),
                f"{job['running_workers']}/{job['wanted_workers']}",
                f"{job['restarts']}",
                output.percent(job["goodput"]),
                output.seconds(job["elapsed_s"]),
                *((f"v{job['config_version']}" if job["config_version"] else "–",) if changed else ()),
                _reason(job),
            )
            for job in jobs
        ],
        spare=("GOODPUT", "CONFIG", "TIME", "RESTARTS", "WORKERS"),
        narrow=("ETA", "LOSS", "SPEED"),
    )


def _reason(job: JobSummary) -> str:
    """Why it is in its state, where that says more than the state itself."""
    whole = job["running_workers"] == job["wanted_workers"]
    return "" if job["state"] == "completed" or (job["state"] == "running" and whole) else job["reason"]
