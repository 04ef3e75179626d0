"""`loom stragglers`: how much each rank currently slows its job down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloom.cli.options import JobArgument, JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import RankCostView, Stragglers

EXAMPLES = (
    ("loom stragglers train-3f9a", "which ranks delay the others, and by how much"),
    ("loom stragglers train-3f9a --watch", "refresh every second"),
    ("loom stragglers train-3f9a --json | jq '.ranks[] | {rank, lost_share}'", "for a script"),
)


def command(job: JobArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Show how much each rank slows the job down: lost steps per second, and the share of the job's speed."""
    from torchloom.cli.show import output

    client = api()
    if watch:
        from torchloom.cli.show import watching

        watching.watch(lambda: client.stragglers(job), show, lines=(lambda now: [now]) if as_json else None)
    elif as_json:
        output.show_json(client.stragglers(job))
    else:
        show(client.stragglers(job))


def show(found: Stragglers) -> None:
    from torchloom.cli.show import output

    ranks = sorted(found["ranks"], key=lambda one: (-one["lost_share"], one["rank"]))
    if found["stands"]:
        print(
            f"{found['job']} is stalled: see `loom incident {found['stands']}`; below: the steps before it\n"
        )
    elif ranks:
        print(f"{found['job']}: {_worst(ranks)}\n")
    columns = ("RANK", "NODE", "OWN", "SLOWEST OTHER", "DATA", "WAITS", "COSTS", "WITHOUT IT", "ROLE")
    shown = len(columns) - (len({one["role"] for one in ranks}) < 2)
    output.table(
        columns[:shown],
        (_row(one)[:shown] for one in ranks),
        nothing=f"{found['job']} has reported no steps yet; see `loom status {found['job']}`",
    )
    if ranks:
        newest = max(one["steps"] for one in ranks)
        print(f"\nmedians per step, over the newest {newest} steps")
        print("WITHOUT IT: the job's speed if this rank were as fast as the slowest other")
    if found["missing"]:
        print(f"no current data: rank {', '.join(map(str, found['missing']))}")


def _worst(ranks: list[RankCostView]) -> str:
    """The speed, and what the first row of the table says."""
    from torchloom.cli.show import output

    worst = ranks[0]
    now = output.rate(worst["steps_per_s"])
    if worst["lost_share"] < 0.01:
        return f"{now}; no rank delays the others"
    return f"{now}; without rank {worst['rank']} it would be {output.rate(worst['without_steps_per_s'])}"


def _row(one: RankCostView) -> tuple[str, ...]:
    from torchloom.cli.show import output

    costs = one["lost_share"] >= 0.001
    return (
        f"{one['rank']}",
        one["node"],
        output.step_time(one["own_s"]),
        "–" if one["slowest_s"] is None else output.step_time(one["slowest_s"]),
        output.step_time(one["data_s"]),
        output.step_time(one["waits_s"]),
        f"{one['lost_steps_per_s']:.2f}/s ({output.percent(one['lost_share'])})" if costs else "–",
        output.rate(one["without_steps_per_s"]) if costs else "–",
        one["role"],
    )
