"""`loom doctor`: what this host has, what torchloom will see of it, and a short job that proves it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import EndVerb, option
from torchloom.cli.options import JsonOption

if TYPE_CHECKING:
    from torchloom.cli.doctor.check import Check

EXAMPLES = (
    ("loom doctor", "check this host and run the self-test"),
    ("loom doctor --no-test", "only look; starts nothing"),
    ("loom doctor --device loomsim", "the self-test on the simulated accelerator"),
    ("loom doctor --json > doctor.json", "for a bug report"),
)

MOST_WORKERS = 8


def command(
    test: Annotated[
        bool, option("--test/--no-test", help="Run a 20-step job and stop one of its ranks.")
    ] = True,
    device: Annotated[
        str | None,
        option(
            "--device",
            metavar="NAME",
            help="Device of the self-test: cpu, cuda, loomsim (simulated), …",
            show_default="the accelerator if there is one, else cpu",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this host: what it has, what torchloom will see of it, and how to mend the rest.

    Exit code 0: all well. 1: something will not be seen. 7: jobs cannot run here.
    """
    from torchloom import __version__
    from torchloom.cli.doctor import host, self_test, sight, training
    from torchloom.cli.doctor.check import Check, exit_code, summary
    from torchloom.cli.doctor.check import as_json as in_json
    from torchloom.cli.show import output
    from torchloom.home import Home

    found = [*host.checks(Home.default()), *sight.checks()]
    facts = training.ask_torch()
    found += training.checks(facts)
    if test and exit_code(found) > 1:
        found.append(Check("self-test", "note", "not run: what is broken comes first"))
    elif test:
        for chosen, workers in jobs(facts, device):
            if chosen == "loomsim":
                found += _build_simulated()
            if exit_code(found) <= 1:
                found += self_test.run(chosen, workers, _say)
    if as_json:
        output.show_json(in_json(found, torchloom=__version__, torch=facts))
    else:
        _show(found)
        print(f"\n{summary(found)}")
        if not _on_gpus(facts):
            print("torchloom has not run on a real GPU yet; if you have some, please send us this output.")
        else:
            print("Please send us this output: torchloom had not run on real GPUs before.")
    raise EndVerb(exit_code(found))


def jobs(facts: dict[str, Any], device: str | None) -> list[tuple[str, int]]:
    """The self-tests to run: device and number of workers. One GPU cannot show that ranks wait."""
    count = max(len(facts.get("devices", [])), int(facts.get("count", 0)))
    if device is not None:
        return [(device, 2 if device in ("cpu", "loomsim") else max(1, min(count, MOST_WORKERS)))]
    name = "cuda" if facts.get("devices") else str(facts.get("accelerator", ""))
    if not name or name == "mps":  # torch has no collectives for it
        return [("cpu", 2)]
    return [(name, min(count, MOST_WORKERS))] if count > 1 else [(name, 1), ("cpu", 2)]


def _show(found: list[Check]) -> None:
    from torchloom.cli.show import output

    rows = [(check.name, check.state, check.sentence) for check in found]
    output.table(("CHECK", "STATE", "FOUND"), rows, nothing="nothing was checked")


def _build_simulated() -> list[Check]:
    from torchloom.chaos import accelerator
    from torchloom.cli.doctor.check import Check

    _say("building the simulated accelerator (a minute the first time)")
    made = accelerator.build()
    if made.library is not None:
        return []
    text = f"the simulated accelerator was not built: {made.detail or made.outcome.value}"
    return [Check("self-test", "broken", text, fix="Install g++ and Python's headers.")]


def _on_gpus(facts: dict[str, Any]) -> bool:
    return bool(facts.get("devices"))


def _say(text: str) -> None:
    print(f"loom: {text}", file=sys.stderr, flush=True)
