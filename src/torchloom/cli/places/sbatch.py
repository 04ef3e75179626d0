"""`loom sbatch`: write a batch script that runs a job under Slurm, or submit it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchloom.cli.jobs import flags
from torchloom.cli.places.slurm_script import Batch, epilog, quoted, script
from torchloom.errors import NotFound, UsageError
from torchloom.model.ids import check_token, token_from

EXAMPLE = "loom sbatch --nnodes 4 --nproc-per-node 8 --time 12:00:00 --gpus-per-node 8 train.py --lr 0.1"
SAVE_S = 120
MOST_SAVE_S = 65535


def main(argv: Sequence[str]) -> int:
    made = flags.parser("sbatch")
    made.description = "Print a batch script that runs a job under Slurm. Takes the flags of `loom run`."
    made.epilog = f"example: {EXAMPLE}"
    _slurm_flags(made)
    argv = _joined(argv)
    if any(word in ("-h", "--help") for word in argv[:1]):
        made.print_help()
        return 0
    if list(argv) == ["--epilog"]:
        print(epilog(sys.executable), end="")
        return 0
    at = flags.script_at(made, argv)
    if "--epilog" in argv[:at]:
        raise UsageError("--epilog prints an epilog for slurm.conf; give it alone.")
    if at >= len(argv):
        raise UsageError("A script is needed", hint="see `loom sbatch --help`")
    asked, ours = _slurm_only().parse_known_args(list(argv[:at]))
    options = flags.parse("run", [*ours, *argv[at:]])
    for flag, given in (
        ("--detach", options.detach),
        ("--home", options.home),
        ("--context", options.context),
    ):
        if given:
            raise UsageError(f"{flag} has no meaning in a batch script.")
    if not 30 <= asked.save_within <= MOST_SAVE_S:
        raise UsageError(
            f"--save-within is from 30 s, because ranks need time to save, to Slurm's {MOST_SAVE_S} s."
        )
    if not os.environ.get("CHECKPOINT_DIR"):
        print(
            "loom: CHECKPOINT_DIR is not set: a job that Slurm requeues would start over. Set it to a "
            "directory that every node sees, or to s3://…",
            file=sys.stderr,
        )
    if not (options.module or options.no_python) and not Path(options.script).exists():
        print(f"loom: {options.script} does not exist here; the nodes must find it", file=sys.stderr)
    made_script = script(_batch(asked, options, [word for word in ours if word != "--"], argv[at:]))
    if not asked.submit:
        print(made_script, end="")
        return 0
    return _submit(made_script)


def _batch(
    asked: argparse.Namespace, options: argparse.Namespace, ours: list[str], command: Sequence[str]
) -> Batch:
    workers = flags.worker_count(options, os.environ)
    nodes = flags.node_count(options, os.environ) + options.standby
    directives = [
        quoted(f"--{name}={value}") for name in _NAMED if (value := getattr(asked, name.replace("-", "_")))
    ]
    least = flags.least_workers(options, os.environ)
    name = check_token(options.name, "job name") if options.name else token_from(_stem(options), "job")
    return Batch(
        name=name,
        nodes=nodes,
        slots=workers,
        directives=(*directives, *(_directive(one) for one in asked.sbatch)),
        save_s=asked.save_within,
        requeue=asked.requeue,
        survives=bool(options.standby) or least is not None,
        run=(*_without_name(ours), *command),
        python=sys.executable,
        directory=os.getcwd(),
    )


def _stem(options: argparse.Namespace) -> str:
    return str(options.script).rpartition(".")[2] if options.module else Path(options.script).stem


_NAMED = ("partition", "account", "qos", "time", "gpus-per-node", "cpus-per-task", "mem", "output")
"""Options of sbatch that most jobs need; all others go through --sbatch."""


def _slurm_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("Slurm")
    for name in _NAMED:
        group.add_argument(f"--{name}", metavar="…", help=f"as of sbatch: --{name}")
    group.add_argument(
        "--sbatch",
        metavar="OPTION",
        action="append",
        default=[],
        help="any other option of sbatch; repeatable",
    )
    group.add_argument(
        "--save-within",
        metavar="S",
        type=int,
        default=SAVE_S,
        help="seconds before the time limit at which the job is saved and requeued (%(default)s)",
    )
    group.add_argument(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="continue after the time limit, a preemption or a lost node (default)",
    )
    group.add_argument(
        "--epilog",
        action="store_true",
        help="print, instead of a script, an epilog for slurm.conf that removes what killed agents left",
    )
    group.add_argument("--submit", action="store_true", help="submit the script instead of printing it")


def _slurm_only() -> argparse.ArgumentParser:
    made = flags.OneLineParser(prog="loom sbatch", add_help=False, allow_abbrev=False)
    _slurm_flags(made)
    return made


def _joined(argv: Sequence[str]) -> list[str]:
    """`--sbatch --array=0-3` as one word: argparse takes the second one for a flag of ours."""
    found: list[str] = []
    for word in argv:
        if found and found[-1] == "--sbatch":
            found[-1] = f"--sbatch={word}"
        else:
            found.append(word)
    return found


def _directive(given: str) -> str:
    option = given if given.startswith("-") else f"--{given}"
    if "\n" in option or not option.strip("-"):
        raise UsageError("--sbatch takes one option of sbatch, such as --sbatch constraint=a100.")
    return option if set(option) & {"'", '"'} else quoted(option)  # what has quotes was quoted for sbatch


def _without_name(words: Sequence[str]) -> list[str]:
    """The script names the job itself, after Slurm's id: a requeued job must find what it saved."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith("--name="):
            skip = False
        elif word == "--name":
            skip = True
        else:
            kept.append(word)
    return kept


def _submit(text: str) -> int:
    try:
        return subprocess.run(["sbatch"], input=text, text=True, check=False).returncode
    except FileNotFoundError:
        raise NotFound(
            "sbatch is not on PATH",
            hint="run this on a login node, or leave --submit out and copy the script",
        ) from None
