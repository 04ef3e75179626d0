"""`loom probe`: measure the links between a job's ranks and show the slow ones."""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client.schema import LinkDelayView, LinkMatrixView

EXAMPLES = (
    ("loom probe train-3f9a", "measure all pairs of ranks at the next step; training waits meanwhile"),
    ("loom probe train-3f9a --within 3s", "measure longer: less noise on a busy network"),
    ("loom probe train-3f9a --last", "show the last measurement, do not measure again"),
)
MOST_COLUMNS = 12
"""Largest number of ranks for which the whole matrix is readable."""
MOST_ROWS = 12
STANDS_OUT = 3.0
"""A cell above this multiple of the median is marked."""


def command(
    job: JobArgument,
    within: Annotated[
        str, option("--within", metavar="SPAN", help="Upper limit on the time the ranks measure.")
    ] = "1s",
    last: Annotated[bool, option("--last", help="Show the last measurement.")] = False,
    why: WhyOption = "",
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the links between all ranks and find slow links, senders and receivers.

    All ranks measure at the same step, or none does; then training continues. The probe measures the network
    between the hosts over its own connections.
    """
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome
    from torchloom.core.detect.tournament import LONGEST_PROBE_S, SHORTEST_PROBE_S
    from torchloom.durations import parse_span

    within_s = parse_span(within, "--within", SHORTEST_PROBE_S, LONGEST_PROBE_S)
    client = api()
    if not last:
        accepted = client.probe(job, {"within_s": within_s, "why": why})
        view = outcome.follow(client, job, accepted["operation"], timeout, quiet=as_json)
        error = outcome.failure(view)
        if error is not None:
            raise error
    found = client.links(job)
    if as_json:
        output.show_json(found)
    else:
        show(found["links"])


def show(links: LinkMatrixView) -> None:
    """The verdict first, then the numbers."""
    from torchloom.cli.show import output

    where = f"at step {links['at_step']} of generation {links['generation']}"
    how = "by the job's own sends" if links["source"] == "training" else "by a probe"
    print(f"{links['verdict']}")
    print(f"measured {output.clock(links['at_ns'])} {where} {how}")
    for rank, reason in links["silent"].items():
        print(f"rank {rank} measured nothing: {reason}", file=sys.stderr)
    if not links["delays"]:
        return
    print()
    usual_s = median(one["transfer_s"] for one in links["delays"])
    ranks = sorted({rank for one in links["delays"] for rank in (one["sender"], one["receiver"])})
    if len(ranks) <= MOST_COLUMNS:
        print(f"time for 1 MB; ! is more than {STANDS_OUT:g}× the median of {span(usual_s)}")
        output.table(("FROM / TO", *map(str, ranks)), _matrix(links["delays"], ranks, usual_s), nothing="")
    else:
        print(f"the slowest of {len(links['delays'])} pairs; the median for 1 MB is {span(usual_s)}")
        output.table(("FROM", "TO", "1 MB", "MESSAGE", "×"), _slowest(links["delays"], usual_s), nothing="")


def _matrix(delays: list[LinkDelayView], ranks: list[int], usual_s: float) -> list[tuple[str, ...]]:
    cells = {(one["sender"], one["receiver"]): one["transfer_s"] for one in delays}
    return [
        (f"rank {a}", *("·" if a == b else _cell(cells.get((a, b)), usual_s) for b in ranks)) for a in ranks
    ]


def _cell(transfer_s: float | None, usual_s: float) -> str:
    if transfer_s is None:
        return "?"
    return span(transfer_s) + (" !" if transfer_s > STANDS_OUT * usual_s else "")


def _slowest(delays: list[LinkDelayView], usual_s: float) -> list[tuple[str, ...]]:
    slowest = sorted(delays, key=lambda one: -one["transfer_s"])[:MOST_ROWS]
    return [
        (
            f"rank {one['sender']}",
            f"rank {one['receiver']}",
            span(one["transfer_s"]),
            span(one["delay_s"]),
            f"{one['transfer_s'] / max(1e-12, usual_s):.1f}",
        )
        for one in slowest
    ]


def span(seconds: float) -> str:
    """A short duration with two significant digits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
