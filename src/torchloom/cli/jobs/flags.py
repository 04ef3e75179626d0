"""The flags of `loom run` and `loom submit`: torchrun's, and a few of our own. Owns parsing and defaults.

Accepts all of torchrun's flags, with hyphens or underscores, so that a torchrun command line works unchanged.
One note names the flags whose job torchloom does in another way. Everything after the script belongs to the
script.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from torchloom.errors import UsageError

_QUIET = ("--standalone", "--run-path")
"""Switches of torchrun that have no effect here."""
_QUIET_VALUES = (
    "--rdzv-backend",
    "--rdzv-id",
    "--rdzv-conf",
    "--monitor-interval",
    "--start-method",
    "--event-log-handler",
    "--local-addr",
    "--logs-specs",
    "--signals-to-handle",
)
"""Options of torchrun with a value, without an effect that a script can see."""
_NOTED = {
    "--rdzv-endpoint": "workers meet at a store of their own for each generation",
    "--master-addr": "workers meet at a store of their own for each generation",
    "--master-port": "workers meet at a store of their own for each generation",
    "--node-rank": "nodes are numbered by torchloom",
    "--role": "ROLE_NAME is always `default`",
    "--redirects": "stdout and stderr go into one file per rank, see `loom logs` and --log-dir",
    "--tee": "output is kept in a file per rank and shown here",
    "--duplicate-stdout-filters": "all output is shown, see `loom logs`",
    "--duplicate-stderr-filters": "all output is shown, see `loom logs`",
    "--numa-binding": "use --pin-cores",
}
"""Options of torchrun whose job torchloom does in another way, and that way in words."""
_NOTED_SWITCHES = {"--virtual-local-rank": "LOCAL_RANK is the rank on the host"}


RESUME = ("auto", "no")


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}", hint=f"see `{self.prog} --help`")


def parser(verb: str) -> argparse.ArgumentParser:
    made = OneLineParser(
        prog=f"loom {verb}",
        usage=f"loom {verb} [flags] script.py [arguments of the script]",
        description="Run a training script on several workers, supervised. Takes torchrun's flags.",
        epilog=f"example: loom {verb} --nproc-per-node 2 --expect-steps 1000 train.py --lr 0.1",
        allow_abbrev=False,
    )
    job = made.add_argument_group("workers")
    _add(
        job,
        "--nproc-per-node",
        metavar="N",
        help="workers per host: a number, auto, cpu or gpu (1)",
    )
    _add(job, "--nnodes", metavar="N", help="hosts, or a range MIN:MAX (1)")
    _add(job, "--max-restarts", metavar="N", type=int, help="restarts in the job's lifetime (10)")
    _add(
        job,
        "--max-fruitless",
        metavar="N",
        type=int,
        help="restarts in a row without 20 steps or a minute of progress (3, or --max-restarts if given)",
    )
    job.add_argument("-m", "--module", action="store_true", help="the script is a module, as with python -m")
    _add(job, "--no-python", action="store_true", help="the script is an executable, not a Python file")
    _add(job, "--local-ranks-filter", metavar="RANKS", help="show the output of these ranks only: 0,1")
    _add(job, "--log-dir", metavar="DIR", help="keep output in DIR/JOB/RANK/stdout.log (in LOOM_HOME)")
    _add(job, "--shutdown-timeout", metavar="S", type=float, help="seconds between SIGTERM and SIGKILL")
    ours = made.add_argument_group("torchloom")
    ours.add_argument(
        "--replicas",
        metavar="N",
        type=int,
        help="run a torchft script as N replicas with a lighthouse of their own; each replica is a job",
    )
    _add(
        ours,
        "--min-replicas",
        metavar="N",
        type=int,
        help="replicas without which no step is committed (1)",
    )
    _add(
        ours,
        "--min-workers",
        metavar="N",
        type=int,
        help="smallest number of workers to start with if there is no room for all",
    )
    _add(ours, "--max-workers", metavar="N", type=int, help="upper limit for `loom scale`")
    ours.add_argument(
        "--standby",
        metavar="N",
        type=int,
        default=0,
        help="spare nodes to keep free and warm (0)",
    )
    ours.add_argument("--name", help="id of the job (default: JOB_ID, else made from the script's name)")
    ours.add_argument(
        "--preload",
        metavar="MODULES",
        action="append",
        default=[],
        help="modules to import before workers are forked",
    )
    ours.add_argument(
        "--spawn",
        choices=("warm", "cold"),
        default="warm",
        help="fork workers from a process that has torch loaded, or start each afresh",
    )
    _add(ours, "--pin-cores", action="store_true", help="give each worker its own share of the cores")
    _add(ours, "--expect-steps", metavar="N", type=int, help="total steps of the job, for the ETA")
    _add(ours, "--max-steps", metavar="N", type=int, help="last step; workers read it as MAX_STEPS")
    ours.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        choices=RESUME,
        help="auto, or nothing after it: frameworks resume from their newest checkpoint; "
        "no: the script decides (default)",
    )
    ours.add_argument(
        "--policy", metavar="FILE", help="policy file: how to react to findings (LOOM_HOME/policy.toml)"
    )
    _add(ours, "--hang-report", metavar="S", type=float, help="report a hang after this long")
    _add(ours, "--hang-act", metavar="S", type=float, help="act on an uncertain hang after this long")
    ours.add_argument(
        "--label", "-l", metavar="KEY=VALUE", action="append", default=[], help="label of the job; repeatable"
    )
    ours.add_argument(
        "--queue",
        action=argparse.BooleanOptionalAction,
        help="wait for room: always, or never; default: wait if the nodes are large enough for the job",
    )
    everything = " (`loom run` in the foreground on this machine does)" if verb == "run" else ""
    ours.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="a variable for the workers, with the shell's value or this one; NAME* for all that begin so;"
        " repeatable. Others than those in docs/environment.md are not forwarded",
    )
    _add(ours, "--env-all", action="store_true", help=f"forward all variables of this shell{everything}")
    ours.add_argument("--python", metavar="PATH", help="Python interpreter for the workers")
    if verb == "run":
        ours.add_argument(
            "--timestamps", action="store_true", help="show when each line of output was printed"
        )
        ours.add_argument("--detach", action="store_true", help="return at once, as `loom submit` does")
    ours.add_argument("--json", action="store_true", help="print only JSON on stdout")
    ours.add_argument("--home", metavar="DIR", help="directory of torchloom's state (LOOM_HOME)")
    ours.add_argument("--context", metavar="NAME", help="cluster to talk to, see `loom context`")
    rest = made.add_argument_group("accepted for compatibility with torchrun")
    for flag in (*_QUIET, *_NOTED_SWITCHES):
        _add(rest, flag, action="store_true", help=argparse.SUPPRESS)
    for flag in (*_QUIET_VALUES, *_NOTED):
        short = {"--redirects": ("-r",), "--tee": ("-t",)}.get(flag, ())
        _add(rest, *short, flag, help=argparse.SUPPRESS)
    rest.description = " ".join((*_QUIET, *_QUIET_VALUES, *_NOTED, *_NOTED_SWITCHES))
    made.add_argument("script", help="script, module (-m) or program (--no-python)")
    made.add_argument("script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def _add(group: argparse._ArgumentGroup, *flags: str, **how: Any) -> None:
    """Add a flag in both of torchrun's spellings; the help shows only the one with hyphens."""
    group.add_argument(*flags, **how)
    long = flags[-1]
    if "-" in long[2:]:
        twin = how | {"help": argparse.SUPPRESS, "dest": long[2:].replace("-", "_")}
        if "default" not in how:
            twin["default"] = argparse.SUPPRESS
        group.add_argument("--" + long[2:].replace("-", "_"), **twin)


def notes(options: argparse.Namespace) -> list[str]:
    """One sentence for each given flag whose job torchloom does in another way."""
    found = []
    for flag, instead in (_NOTED | _NOTED_SWITCHES).items():
        value = getattr(options, flag[2:].replace("-", "_"))
        if value and not (flag == "--node-rank" and value == "0"):
            found.append(f"{flag} has no effect here: {instead}")
    return found


def worker_count(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Workers per host: --nproc-per-node, else PET_NPROC_PER_NODE like torchrun, else WORLD_SIZE."""
    given = options.nproc_per_node or env.get("PET_NPROC_PER_NODE") or env.get("WORLD_SIZE") or "1"
    match given:
        case "cpu":
            return os.cpu_count() or 1
        case "gpu":
            found = _visible_gpus(env)
            if not found:
                raise UsageError("--nproc-per-node gpu needs a GPU, but none is visible here.")
            return found
        case "auto":
            return _visible_gpus(env) or os.cpu_count() or 1
    try:
        count = int(given)
    except ValueError:
        raise UsageError(f"{given!r} is not a number of workers: use a number, auto, cpu or gpu.") from None
    if count < 1:
        raise UsageError(f"A job needs at least 1 worker, {count} were asked for.")
    if count > 64:
        from torchloom.model.job import MAX_WORKERS

        if count > MAX_WORKERS:
            raise UsageError(f"A job has at most {MAX_WORKERS} workers, {count} were asked for.")
    return count


def _visible_gpus(env: Mapping[str, str]) -> int:
    """GPUs that a worker would see, without importing torch."""
    from torchloom.agent.health.known_gpus import look
    from torchloom.agent.observe.devices import resolve_visible

    gpus = look("here").gpus
    visible = env.get("CUDA_VISIBLE_DEVICES")
    return len(gpus) if visible is None else len(resolve_visible(visible, gpus))


def node_count(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Number of hosts wanted: the upper end of a range."""
    return _node_range(options, env)[1]


def least_workers(options: argparse.Namespace, env: Mapping[str, str]) -> int | None:
    """The smallest acceptable world: --min-workers, else the lower end of a range of hosts; None: only the
    full one."""
    least, most = _node_range(options, env)
    if options.min_workers is not None:
        given: int = options.min_workers
        return given
    return least * worker_count(options, env) if least < most else None


def _node_range(options: argparse.Namespace, env: Mapping[str, str]) -> tuple[int, int]:
    given = options.nnodes or env.get("PET_NNODES") or "1"
    try:
        least = int(given.partition(":")[0])
        most = int(given.partition(":")[2] or least)
    except ValueError:
        raise UsageError(f"{given!r} is not a number of nodes: use N or MIN:MAX.") from None
    if not 1 <= least <= most:
        raise UsageError(f"{given} is no range of nodes: use N or MIN:MAX with MIN at least 1.")
    return least, most


def restarts(options: argparse.Namespace, env: Mapping[str, str]) -> int | None:
    """--max-restarts, else PET_MAX_RESTARTS or MAX_RESTARTS; None for the default of jobs."""
    if options.max_restarts is not None:
        count: int = options.max_restarts
    else:
        given = env.get("PET_MAX_RESTARTS") or env.get("MAX_RESTARTS")
        if not given:
            return None
        if not given.isdecimal():
            raise UsageError(f"MAX_RESTARTS is {given!r}, which is not a number.")
        count = int(given)
    if count < 0:
        raise UsageError("--max-restarts cannot be negative.")
    return count


def fruitless(options: argparse.Namespace) -> int | None:
    """--max-fruitless; None for the default of jobs."""
    count: int | None = options.max_fruitless
    if count is not None and count < 0:
        raise UsageError("--max-fruitless cannot be negative.")
    return count


def shown_ranks(options: argparse.Namespace) -> frozenset[int] | None:
    """Ranks whose output to show; None for all."""
    given: str | None = options.local_ranks_filter
    if not given:
        return None
    try:
        return frozenset(int(part) for part in given.split(","))
    except ValueError:
        raise UsageError(f"--local-ranks-filter takes ranks such as 0,1, not {given!r}.") from None


def script_at(made: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Index of the script: the first word that is neither one of our flags nor the value of one."""
    known = made._option_string_actions  # argparse has no public list of its flags
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return at + 1
        if not word.startswith("-") or word == "-":
            return at
        name = word.partition("=")[0]
        short = "" if word.startswith("--") else word[:2]
        if word == "--resume":  # its value may be left out, and a script of such a name is unlikely
            at += 2 if at + 1 < len(argv) and argv[at + 1] in RESUME else 1
        elif word in known:
            at += 1 if known[word].nargs == 0 else 2
        elif name in known or (short in known and known[short].nargs != 0):
            at += 1  # its value is in the same word
        else:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"There is no flag {name} before the script", hint=f"{hint}the script's own flags follow it"
            )
    return len(argv)


def _hidden(script: Sequence[str]) -> list[str]:
    """A placeholder for the script, whatever its name; empty if there is none."""
    return ["script"] if script else []


def parse(verb: str, argv: Sequence[str]) -> argparse.Namespace:
    made = parser(verb)
    at = script_at(made, argv)
    # argparse would look for flags in the script's own arguments too, so it gets a placeholder alone.
    ours = [word for word in argv[:at] if word != "--"]
    if ours[-1:] == ["--resume"]:
        ours[-1] = "--resume=auto"  # or the placeholder would be its value
    options = made.parse_args([*ours, *_hidden(argv[at : at + 1])])
    options.script, options.script_args = argv[at], list(argv[at + 1 :])
    if options.module and options.no_python:
        raise UsageError("-m and --no-python exclude each other.")
    for note in notes(options):
        print(f"loom: {note}.", file=sys.stderr)
    return options
