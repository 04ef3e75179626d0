"""`loom config`: a job's settings, their values, who controls each one, and the history of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import ConfigView, HistoryView, PlaceView, SettingView

EXAMPLES = (
    ("loom config train-3f9a", "settings, values, what is allowed"),
    ("loom config train-3f9a --history", "who changed what, when, why, and as of which step"),
    ("loom config train-3f9a --json | jq .version", "one number"),
)


def command(
    job: JobArgument,
    history: Annotated[bool, option("--history", help="List all changes instead, oldest first.")] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job's settings, their values and limits, or the history of changes."""
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.show import output, watching

    client = api()
    job = steered(client, job)
    if history:
        versions = client.config_history(job)
        if as_json:
            output.show_json(versions)
        else:
            show_history(versions)
    elif watch:
        watching.watch(
            lambda: client.config(job),
            show,
            lines=(lambda view: [view]) if as_json else None,
        )
    elif as_json:
        output.show_json(client.config(job))
    else:
        show(client.config(job))


def show(view: ConfigView) -> None:
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome

    said = f"version {view['version']}" if view["version"] else "no changes yet"
    print(f"{view['job']}: {said}{', paused' if view['paused'] else ''}")
    for one in view["operations"]:
        told = outcome.assignments(one["values"]) or one["kind"]
        print(f"  in progress: {told} · {outcome.phase(one)} · requested by {one['by']} ({one['id']})")
    for entry in view["schedule"]:
        if not entry["in_force"]:
            by = entry["superseded_by"]
            print(
                f"  {'scheduled' if by is None else f'superseded by version {by}'}: "
                f"version {entry['version']} at step {entry['step']}: "
                f"{outcome.assignments(entry['values'])}"
            )
    print()
    output.table(
        ("SETTING", "VALUE", "RULED BY", "ALLOWED"),
        (row for setting in view["settings"] for row in rows(setting, view["optimizers"])),
        nothing="no settings"
        if view["known"]
        else "the workers have not reported their settings yet; they do so at their first step",
    )


def rows(setting: SettingView, optimizers: list[str]) -> list[tuple[str, ...]]:
    """One row if all places have the same value, otherwise one row per place, with its optimizer's class."""
    from torchloom.cli.steer import outcome

    allowed = setting["allowed"]
    if setting["description"]:
        allowed += f" – {setting['description']}"
    alike = {(outcome.value(place["value"]), ruled(place)) for place in setting["places"]}
    if len(alike) == 1:
        value, by = alike.pop()
        name = setting["name"]
        many = len(setting["places"])
        of = ", ".join(sorted({one for place in setting["places"] if (one := owner(place, optimizers))}))
        note = ", ".join(part for part in (of, f"{many} places" if many > 1 else "") if part)
        return [(f"{name} ({note})" if note else name, value, by, allowed)]
    found = [
        (
            f"{place['address']} ({of})" if (of := owner(place, optimizers)) else place["address"],
            outcome.value(place["value"]),
            ruled(place),
            "",
        )
        for place in setting["places"]
    ]
    return [(*found[0][:3], allowed), *found[1:]] if found else [(setting["name"], "–", "–", allowed)]


def owner(place: PlaceView, optimizers: list[str]) -> str:
    """The class of the optimizer that the place belongs to; empty for a setting of the script's own."""
    number = place["address"].partition(".")[0].removeprefix("optimizer")
    known = "." in place["address"] and number.isdecimal() and int(number) < len(optimizers)
    return optimizers[int(number)] if known else ""


def ruled(place: PlaceView) -> str:
    """Whether the script or a change controls the value, and the script's own value if a change does."""
    from torchloom.cli.steer import outcome

    by = f" by version {place['version']}" if place["version"] is not None else ""
    match place["mode"]:
        case "hold":
            return f"held{by}; the script's own value is {outcome.value(place['own'])}"
        case "scale":
            return f"scaled{by}; the script's own value is {outcome.value(place['own'])}"
        case None:
            return f"set{by}" if by else "the script"


def show_history(versions: list[HistoryView]) -> None:
    from torchloom.cli.show import output

    output.table(
        ("VERSION", "STEP", "WHEN", "BY", "STATE", "CHANGE"),
        (
            (
                f"{one['version'] or '–'}",
                f"{one['step']}" if one["step"] is not None else "–",
                output.clock(one["at_ns"]),
                one["by"] or "–",
                became(one),
                change(one),
            )
            for one in versions
        ),
        nothing="no changes",
    )


def became(one: HistoryView) -> str:
    """The state of a change, and whether it still has any effect."""
    if one["state"] != "applied":
        return one["state"]
    if not one["in_force"]:
        return "rolled back"
    return "applied" if one["superseded_by"] is None else f"superseded by {one['superseded_by']}"


def change(one: HistoryView) -> str:
    """What the change did, and why."""
    from torchloom.cli.steer import outcome
    from torchloom.core.config.overrides import HOLD, mode_of

    done = "; ".join(f"{place} {text}" for place, text in outcome.grouped(one["changed"]))
    parts = [done or outcome.assignments(one["values"])]
    how = {name: given for name, given in one["values"].items() if mode_of(given) != HOLD}
    if done and how:  # a number alone does not say whether the value is held or scaled
        parts.append(outcome.assignments(how))
    if one["state"] not in ("applied",):
        parts.append(one["reason"])
    if one["reverts"] is not None:
        parts.append(f"back to version {one['reverts']}")
    if one["why"]:
        parts.append(f"“{one['why']}”")
    return " · ".join(parts)
