"""`loom checkpoints`: a job's checkpoints, whether each is usable, and which ones are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import EndVerb, argument, option
from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import CheckpointList, CheckpointView

EXAMPLES = (
    ("loom checkpoints train-3f9a", "all checkpoints, newest first"),
    ("loom checkpoints train-3f9a --verify", "compare the checksums of all of them"),
    ("loom checkpoints train-3f9a --verify step-200.g1", "of one"),
    ("loom checkpoints train-3f9a --pin step-200.g1", "keep it, whatever the keep rules say"),
    ("loom checkpoints train-3f9a --delete step-100.g1", "remove one"),
)

VERIFY_WITHIN_S = 660.0


def command(
    job: JobArgument,
    name: Annotated[
        str | None, argument(metavar="[NAME]", help="Name of one checkpoint, as listed; for --verify.")
    ] = None,
    verify: Annotated[bool, option("--verify", help="Compare the checksums of NAME, or of all.")] = False,
    pin: Annotated[
        str | None,
        option("--pin", metavar="NAME", help="Keep this checkpoint, whatever the keep rules say."),
    ] = None,
    unpin: Annotated[
        str | None, option("--unpin", metavar="NAME", help="Remove the pin of this checkpoint.")
    ] = None,
    delete: Annotated[str | None, option("--delete", metavar="NAME", help="Delete this checkpoint.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List, verify, pin or delete a job's checkpoints."""
    from torchloom.cli.show import output
    from torchloom.errors import UsageError

    asked = [verify, pin is not None, unpin is not None, delete is not None]
    if sum(asked) > 1:
        raise UsageError("Only one of --verify, --pin, --unpin and --delete at a time.")
    if name is not None and not verify:
        raise UsageError("NAME needs an action", hint="add --verify, --pin, --unpin or --delete")
    client = api()
    if verify:
        _verify(client, job, name, as_json)
    elif pin is not None:
        _tell(client.pin_checkpoint(job, _checked(pin)), "is pinned", as_json)
    elif unpin is not None:
        _tell(client.unpin_checkpoint(job, _checked(unpin)), "is no longer pinned", as_json)
    elif delete is not None:
        client.delete_checkpoint(job, _checked(delete))
        if as_json:
            output.show_json({"job": job, "deleted": delete})
        else:
            print(f"{delete} deleted")
    elif as_json:
        output.show_json(client.checkpoints(job))
    else:
        show(client.checkpoints(job))


def show(found: CheckpointList) -> None:
    from torchloom.cli.show import output

    if found["store"]:
        print(head(found))
    output.table(
        ("NAME", "STEP", "SAVED", "SIZE", "WORLD", "CONFIG", "PARENT", "VERIFIED", "STATE"),
        (
            (
                one["name"],
                f"{one['step']}",
                output.clock(one["created_ns"]),
                size(one["size"]),
                f"{one['world']}" if one["world"] else "–",
                f"{one['config_version']}" if one["world"] else "–",
                one["parent"] or "–",
                output.clock(one["verified_ns"]) if one["verified_ns"] else "no",
                state(one),
            )
            for one in found["checkpoints"]
        ),
        nothing="no checkpoints"
        if found["store"]
        else f"{found['job']} has reported no checkpoints; loom.Checkpoint in its script makes some",
        spare=("PARENT", "CONFIG", "WORLD", "VERIFIED"),
    )
    if found["left_out"]:
        print(f"… and {found['left_out']} older ones")


def head(found: CheckpointList) -> str:
    """Where the checkpoints are, how often they are saved, and whether saving works."""
    parts = [f"in {found['store']}"]
    if "://" not in found["store"]:
        parts[0] += f" on {found['node']}"
    if found["interval"]:
        parts.append(f"every {found['interval']} steps")
    if found["memory_interval"]:
        parts.append(f"in memory every {found['memory_interval']}")
    if found["restored"]:
        parts.append(f"resumed from {found['restored']}")
    if found["failing"]:
        parts.append(f"saving fails, see `loom incident {found['failing']}`")
    return " · ".join(parts)


def state(one: CheckpointView) -> str:
    """What a user should know about a checkpoint before using it."""
    if not one["whole"]:
        return f"damaged: {one['why']}"
    words = ["newest" if one["newest"] else "" if one["resumable"] else "on an abandoned branch"]
    words.append("pinned" if one["pinned"] else "")
    words.append("" if one["finite"] else "contains NaN or infinite values")
    return ", ".join(word for word in words if word) or "whole"


def size(count: int) -> str:
    """A number of bytes with a readable unit."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _verify(client: Client, job: str, name: str | None, as_json: bool) -> None:
    """Exit code 1 if a checkpoint is damaged, also if a file is missing or its manifest is unreadable."""
    from torchloom.cli.show import output

    client.timeout_s = VERIFY_WITHIN_S
    if name is None:
        names = [one["name"] for one in client.checkpoints(job)["checkpoints"]]
    else:
        names = [_checked(name)]
    damaged = False
    for each in names:
        found = client.verify_checkpoint(job, each)
        damaged = damaged or not found["whole"]
        if as_json:
            output.show_line(found)
        else:
            print(f"{each} is intact" if found["whole"] else f"{each} is damaged: {found['why']}", flush=True)
    if not names and not as_json:
        print("no checkpoints")
    if damaged:
        raise EndVerb(1)


def _tell(found: CheckpointView, what: str, as_json: bool) -> None:
    from torchloom.cli.show import output

    if as_json:
        output.show_json(found)
    else:
        print(f"{found['name']} {what}")


def _checked(name: str) -> str:
    """Reports a mistake on the command line before any request is sent."""
    from torchloom.checkpoint.store.names import parse_name
    from torchloom.errors import UsageError

    if parse_name(name) is None:
        raise UsageError(
            f"{name!r} is not a checkpoint's name", hint="use a name from `loom checkpoints JOB`"
        )
    return name
