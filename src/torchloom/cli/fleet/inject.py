"""`loom inject`: cause a fault in a running job on purpose."""

from __future__ import annotations

from typing import Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JsonOption, api

EXAMPLES = (
    ("loom inject train-3f9a kill --rank 1", "SIGKILL, as the kernel would when memory is short"),
    ("loom inject train-3f9a stop --rank 0", "SIGSTOP: a worker that freezes silently"),
    ("loom inject train-3f9a slow --rank 2 --amount 1.5 --for 60s", "a straggler for a minute"),
    ("loom inject train-3f9a hang --rank 1 --where data", "wait for a batch that never comes"),
    ("loom inject train-3f9a slow-link --rank 1 --peer 2 --amount 5", "5 MB/s from rank 1 to rank 2"),
    ("loom inject train-3f9a random --seed 7 --for 10m --every 60s", "a series of faults, repeatable"),
    ("loom inject --list", "all faults and the meaning of --amount"),
)


def command(
    job: Annotated[str, argument(metavar="JOB", help="Name of the job.")] = "",
    fault: Annotated[
        str, argument(metavar="FAULT", help="The fault, see --list; or `random` for a series.")
    ] = "",
    ranks: Annotated[
        list[int] | None,
        option("--rank", metavar="N", help="Rank to hit; repeatable. Default: all."),
    ] = None,
    amount: Annotated[
        float | None, option("--amount", metavar="X", help="Factor, exit code or size: see --list.")
    ] = None,
    lasting: Annotated[
        str,
        option("--for", metavar="TIME", help="Duration: 30s, 2m. Default: no end; 5m for a series."),
    ] = "",
    at_step: Annotated[
        int | None,
        option("--at-step", metavar="N", help="Inject before this step of the current generation."),
    ] = None,
    where: Annotated[
        str, option("--where", metavar="PLACE", help="Place of a hang: step, data or backward.")
    ] = "step",
    seed: Annotated[
        int, option("--seed", help="Seed for the bit that a bit-flip hits, or for a series.")
    ] = 0,
    every: Annotated[
        str, option("--every", metavar="TIME", help="Mean time between the faults of a series.")
    ] = "30s",
    peer: Annotated[int | None, option("--peer", metavar="N", help="Receiving rank of a slow link.")] = None,
    show: Annotated[bool, option("--list", help="List all faults.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Inject a fault, to see how torchloom reports it and reacts. Needs an admin token."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import check
    from torchloom.core.injection import KINDS, LONGEST_S, kind_of
    from torchloom.durations import parse_span
    from torchloom.errors import UsageError
    from torchloom.model.faults import FaultPlace

    if show:
        rows = [
            (kind, f"{it.amount}, {it.default:g}" if it.amount else "", it.what) for kind, it in KINDS.items()
        ]
        if as_json:
            output.show_json([{"kind": kind, "what": what, "amount": number} for kind, number, what in rows])
        else:
            output.table(("FAULT", "--amount", "WHAT HAPPENS"), rows, nothing="no faults")
        return
    if not job or not fault:
        raise UsageError("A job and a fault are needed", hint="`loom inject --list` shows the faults")
    if fault == "random":
        _series(job, seed, parse_span(lasting or "5m", "--for"), parse_span(every, "--every"), as_json)
        return
    made = api().inject(
        job,
        {
            "kind": kind_of(fault),
            "ranks": ranks or [],
            "amount": amount,
            "duration_s": parse_span(lasting, "--for", 0.0, LONGEST_S) if lasting else 0.0,
            "at_step": at_step,
            "where": check([where], FaultPlace, "--where")[0],
            "seed": seed,
            "peer": peer,
        },
    )
    if as_json:
        output.show_line(made)
    else:
        hit = f"rank{'s' * (len(made['ranks']) > 1)} {', '.join(map(str, made['ranks']))}"
        print(f"{made['kind']} injected into {hit} of {job} ({made['name']})")


def _series(job: str, seed: int, lasting_s: float, every_s: float, as_json: bool) -> None:
    """Inject one fault after another. Skips a fault that is refused because its rank is being replaced."""
    import time

    from torchloom.chaos.injections import series
    from torchloom.cli.show import output
    from torchloom.errors import Conflict, TimedOut

    client, began = api(), time.monotonic()
    plan = series(seed, client.job(job)["world_size"], lasting_s, every_s)
    for one in plan:
        time.sleep(max(0.0, began + one.after_s - time.monotonic()))
        fault, said = one.fault, ""
        try:
            client.inject(
                job,
                {
                    "kind": fault.kind,
                    "ranks": list(one.ranks),
                    "amount": fault.amount,
                    "duration_s": fault.duration_s,
                    "where": fault.where,
                    "seed": fault.seed,
                    "peer": fault.peer,
                },
            )
        except (Conflict, TimedOut) as error:
            said = str(error)
        if as_json:
            output.show_line({"after_s": one.after_s, "what": one.describe(), "refused": said})
        else:
            print(
                f"{one.after_s:7.1f} s  {one.describe()}{f' – refused: {said}' if said else ''}", flush=True
            )
    if not as_json:
        print(f"{len(plan)} faults; `loom incidents {job}` shows the reports")
