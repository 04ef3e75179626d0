"""`loom superbench import`: record results of SuperBench with the devices that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import argument
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.core.devices.superbench import BenchFile
    from torchloom.model.device_wear import TestResult

HELP = "Record results of SuperBench with the devices that they are about."
EXAMPLES = (
    ("loom superbench import results-summary.jsonl", "measurements of a run; several files are one run"),
    ("loom superbench import diagnosis_summary.jsonl", "what SuperBench's rules found defective"),
)
AT_ONCE = 50
"""Results in one request."""

FilesArgument = Annotated[
    list[Path], argument(metavar="FILE…", help="results-summary.jsonl, diagnosis_summary.jsonl.")
]


def import_files(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Import SuperBench's result files as they are.

    Each measurement is compared with those of all devices in the files. The worst 16 of each device are kept
    and shown by `loom device ID`. A device that failed a benchmark, or that SuperBench's rules call
    defective, is failing: the policy for devices decides what follows.
    """
    from torchloom.cli.show import output
    from torchloom.core.devices.superbench import results

    client = api()
    file = _read(files)
    nodes = client.nodes()
    gpus = {name: len(node["devices"]) for node in nodes for name in (node["hostname"], node["id"])}
    made = results(file, gpus)
    bodies = [_body(node, gpu, result) for (node, gpu), result in sorted(made.items(), key=_order)]
    devices: list[str] = []
    unknown: list[str] = []
    for at in range(0, len(bodies), AT_ONCE):
        answer = client.import_tests({"source": "superbench", "results": bodies[at : at + AT_ONCE]})
        devices += answer["devices"]
        unknown += answer["unknown"]
    failed = sum(not result.passed for result in made.values())
    if as_json:
        output.show_json(
            {"devices": devices, "unknown": unknown, "failed": failed, "left_out_lines": file.left_out}
        )
        return
    print(f"results of {len(set(devices))} devices were recorded; {failed} did not pass")
    if unknown:
        names = ", ".join(unknown[:8]) + (" …" if len(unknown) > 8 else "")
        print(f"{len(unknown)} places are not known here, and nothing was recorded for them: {names}")
    if file.left_out:
        print(f"{file.left_out} lines are neither results nor a diagnosis, and were left out")


def _read(files: list[Path]) -> BenchFile:
    from torchloom.core.devices.superbench import BenchFile
    from torchloom.errors import UsageError

    found = BenchFile()
    for path in files:
        try:
            found.read_file(path.read_bytes(), path.resolve().parent.name)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if not found.values and not found.defective:
        raise UsageError(f"{', '.join(map(str, files))}: there is no result of SuperBench in it.")
    return found


def _order(item: tuple[tuple[str, int | None], TestResult]) -> tuple[str, int]:
    (node, gpu), _ = item
    return node, -1 if gpu is None else gpu


def _body(node: str, gpu: int | None, result: TestResult) -> Any:
    from msgspec.structs import asdict

    return {
        "node": node[:253],
        "gpu": gpu,
        "passed": result.passed,
        "why": result.why[:500],
        "measured": result.measured,
        "metrics": [asdict(one) | {"name": one.name[:200]} for one in result.metrics],
    }


SUBVERBS = {"import": import_files}
