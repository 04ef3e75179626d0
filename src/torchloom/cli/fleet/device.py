"""`loom device`: look at one device, report that it failed, drain it, test it, or return it to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from torchloom.cli.declared import argument, option
from torchloom.cli.fleet.device_test import follow_test, show_risk, show_test
from torchloom.cli.fleet.emptying import name_those_that_stay, wait_empty
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import DeviceDetail, DeviceMarkView, DevicePolicyBody, LeavingView

HELP = "Look at one device, report that it failed, drain it, test it, or return it to use."
DEFAULT = "show"
EXAMPLES = (
    ("loom devices", "list devices; the first letters of an id are enough below"),
    ("loom device GPU-5c1a", "its workers, health, measurements and history"),
    ("loom device fail GPU-5c1a --why 'Xid 79'", "replace the workers on it now"),
    ("loom device drain GPU-5c1a --why 'fan broken'", "save the jobs on it and continue without it"),
    ("loom device drain GPU-5c1a --dry-run", "only show which jobs that would affect"),
    ("loom device return GPU-5c1a", "it may get workers again; also cancels a drain"),
    ("loom device return GPU-5c1a --test", "only if it passes a test"),
    ("loom device test GPU-5c1a", "test a device that no worker uses"),
    ("loom device policy failing=drain", "what is done when a device's health gets worse"),
    ("loom device policy --at-risk test", "test devices that are likely to fail, when they are idle"),
)


DeviceArgument = Annotated[str, argument(metavar="DEVICE", help="Id of the device, or the beginning of it.")]
WhyOption = Annotated[str, option("--why", metavar="TEXT", help="Reason, kept with the device.")]
DryRunOption = Annotated[bool, option("--dry-run", help="Only show what would happen.")]
ForceOption = Annotated[bool, option("--force", help="Also move jobs that cannot save first.")]
WaitOption = Annotated[bool, option("--wait/--no-wait", help="Return once no job uses the device.")]


def show(device: DeviceArgument, as_json: JsonOption = False) -> None:
    """Show one device: its workers, health, newest measurements and history."""
    from torchloom.cli.show import output

    found = api().device(device)
    if as_json:
        output.show_json(found)
        return
    print(f"{found['device']}  {found['kind']} {found['name']} on {found['node']}")
    print(f"state    {found['state']}" + (f" ({found['out']})" if found["out"] else ""))
    print(f"health   {found['health']}" + (f": {found['health_why']}" if found["health_why"] else ""))
    show_risk(found)
    if found["testing"]:
        print(f"test     runs now, requested by {found['testing']}")
    elif found["wants_test"]:
        print(f"test     when no worker uses it: {found['wants_test']}")
    print(f"workers  {', '.join(user['worker'] for user in found['workers']) or '–'}")
    for one in found["leaving"]:
        print(f"leaving  {one['job']} {'stays' if one['stays'] else 'leaves'}: {one['note']}")
    for reading in found["readings"]:
        said = [f"{name} {value:g}" for name, value in sorted(reading["values"].items())]
        said += reading["states"] + ([reading["error"]] if reading["error"] else [])
        print(f"{reading['source']:<8} {', '.join(said) or '–'}")
    show_test(found["tests"][-1] if found["tests"] else None)
    if found["history"]:
        print()
        output.table(
            ("WHEN", "WHAT", "BY", "WHY"),
            (
                (output.clock(one["at_ns"]), one["what"], one["by"] or "–", one["why"] or "–")
                for one in found["history"]
            ),
            nothing="",
        )


def fail(
    device: DeviceArgument, why: WhyOption = "", dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Report that a device failed: replace the workers on it at once, and use it no more.

    Only jobs with a worker on the device are affected. Each resumes from its newest checkpoint, on another
    device, on its standby or with fewer workers; a job without room waits. It does not count as a restart.
    """
    _show(api().fail_device(device, {"why": why, "dry_run": dry_run}), "failed", as_json)


def drain(
    device: DeviceArgument,
    why: WhyOption = "",
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Take a working device out of use: save the jobs on it, and continue without it.

    A job that cannot save, or for which there is no room without the device, stays and keeps training: the
    output names it and the exit code is 5. `loom device return` cancels a drain.
    """
    from torchloom.cli.show import output

    client = api()
    made = client.drain_device(device, {"why": why, "force": force, "dry_run": dry_run})
    if dry_run or not wait:
        _show(made, "drained", as_json)
        return
    found = _wait_empty(client, made["device"], quiet=as_json)
    if as_json:
        output.show_json(found)
    elif found["state"] == "drained":
        print(f"{found['device']} is drained. `loom device return {found['device']}` returns it to use")
    name_those_that_stay(found["device"], found["leaving"])


def _wait_empty(client: Client, device: str, quiet: bool) -> DeviceDetail:
    """Wait until every job has left the device or has turned out unable to leave."""

    def look() -> tuple[DeviceDetail, list[LeavingView], bool]:
        found = client.device(device)
        leaving = found["leaving"]
        all_stay = bool(leaving) and all(one["stays"] for one in leaving)
        return found, leaving, not found["workers"] or found["state"] != "draining" or all_stay

    return wait_empty(device, look, f"loom device {device}", quiet)


TestOption = Annotated[bool, option("--test", help="Test it first; return it only if it passes.")]


def give_back(
    device: DeviceArgument, why: WhyOption = "", test: TestOption = False, as_json: JsonOption = False
) -> None:
    """Return a device to use, or cancel its drain.

    With `--test` it is tested first, and stays out of use unless it passes: the exit code is 5 then.
    """
    from torchloom.cli.show import output
    from torchloom.errors import Conflict

    client = api()
    found = client.return_device(device, {"why": why, "test": test})
    if test:
        found = follow_test(client, found["device"], quiet=as_json)
    if as_json:
        output.show_json(found)
    elif found["state"] == "available":
        print(f"{found['device']} of {found['node']} may get workers again")
    if found["state"] != "available":
        last = found["history"][-1]
        why_not = f": {last['why']}" if last["why"] else ""
        raise Conflict(f"{found['device']} stays out of use. {last['what'].capitalize()}{why_not}.")


def test(device: DeviceArgument, why: WhyOption = "", as_json: JsonOption = False) -> None:
    """Test a device that no worker uses: compute, memory and communication, every result checked.

    It takes some seconds, and the device gets no worker meanwhile. The exit code is 5 if it fails. A test
    that could not run, for example because torch sees no GPU, says nothing about the device.
    """
    from torchloom.cli.show import output
    from torchloom.errors import Conflict

    client = api()
    id = client.test_device(device, {"why": why})["device"]
    found = follow_test(client, id, quiet=as_json)
    if as_json:
        output.show_json(found)
    last = found["history"][-1]
    if "could not run" in last["what"]:
        raise Conflict(f"{id} was not tested: {last['why']}.")
    result = found["tests"][-1]
    if not as_json:
        show_test(result)
    if not result["passed"]:
        raise Conflict(f"{id} failed the test: {result['why']}.")


RulesArgument = Annotated[
    list[str] | None,
    argument(metavar="CLASS=ACTION…", help="For example failing=drain."),
]
BudgetOption = Annotated[
    int | None, option("--acts-per-hour", min=0, help="Devices it may take out of use per hour.")
]
AtRiskOption = Annotated[
    str | None,
    option("--at-risk", metavar="ACTION", help="ignore, report, test (when idle) or drain."),
]
RiskOption = Annotated[
    float | None,
    option("--risk", min=0.001, max=1.0, help="From which risk to fail within a day; 0.1 by default."),
]
ReturnTestedOption = Annotated[
    bool | None,
    option(
        "--return-tested/--no-return-tested",
        help="Return a device drained for its risk if it passes its test.",
    ),
]
PolicyDryRun = Annotated[
    bool | None, option("--dry-run/--no-dry-run", help="Only record what would be done.")
]


def policy(
    rules: RulesArgument = None,
    acts_per_hour: BudgetOption = None,
    dry_run: PolicyDryRun = None,
    at_risk: AtRiskOption = None,
    risk: RiskOption = None,
    return_tested: ReturnTestedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set what is done when a device's health gets worse, or when it is likely to fail soon.

    Classes are degraded, failing and failed; actions are ignore, report, drain and fail. By default the
    workers on a failed device are replaced, and anything else is reported, a high risk included.
    """
    from torchloom.cli.show import output
    from torchloom.errors import UsageError

    client = api()
    found = client.device_policy()
    changes = (acts_per_hour, dry_run, at_risk, risk, return_tested)
    if rules or any(one is not None for one in changes):
        wanted: dict[str, Any] = dict(found["rules"])
        for rule in rules or ():
            level, equals, action = rule.partition("=")
            if not equals:
                raise UsageError(f"{rule!r} is no rule; write CLASS=ACTION, for example failing=drain.")
            wanted[level] = action
        body: DevicePolicyBody = {
            "rules": wanted,
            "dry_run": found["dry_run"] if dry_run is None else dry_run,
            "acts_per_hour": found["acts_per_hour"] if acts_per_hour is None else acts_per_hour,
            "at_risk": cast(Any, found["at_risk"] if at_risk is None else at_risk),
            "risk": found["risk"] if risk is None else risk,
            "return_tested": found["return_tested"] if return_tested is None else return_tested,
        }
        found = client.set_device_policy(body)
    if as_json:
        output.show_json(found)
        return
    actions = {"degraded": "report", "failing": "report", "failed": "fail"} | found["rules"]
    print("  ".join(f"{level}: {action}" for level, action in actions.items()))
    back = "; it is returned if it passes its test" if found["return_tested"] else ""
    print(f"risk of {100 * found['risk']:g} % and more: {found['at_risk']}{back}")
    print(f"at most {found['acts_per_hour']} devices per hour" + (", dry run" if found["dry_run"] else ""))


def _show(made: DeviceMarkView, word: str, as_json: bool) -> None:
    from torchloom.cli.show import output

    if as_json:
        output.show_json(made)
        return
    would = "would be " if made["dry_run"] else ""
    print(f"{made['device']} {would}{word}; {len(made['affected'])} jobs are affected")
    for one in made["affected"]:
        ranks = ", ".join(map(str, one["ranks"]))
        print(f"  {one['job']} (rank {ranks}): {one['outcome']}")


SUBVERBS = {
    "show": show,
    "fail": fail,
    "drain": drain,
    "return": give_back,
    "test": test,
    "policy": policy,
}
