"""`python -m torchloom.spawner`: the program. Owns its start-up and the top frame of every warm worker.

Run it with the job's interpreter and options, as torchloom.spawner.launch does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

from torchloom.probe import streams
from torchloom.spawner.child import Become
from torchloom.spawner.refusal import Refused
from torchloom.spawner.server import Server
from torchloom.spawner.warm import Warmth, settle, warm_later, warm_up


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torchloom.spawner")
    parser.add_argument(
        "--socket", type=Path, required=True, help="unix socket to serve, in a 0700 directory"
    )
    parser.add_argument("--key", default="", help="what this spawner is good for (see torchloom.spawner.key)")
    parser.add_argument(
        "--cold", action="store_true", help="import nothing; every worker is a new interpreter"
    )
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import this too")
    parser.add_argument("--learned", type=Path, help="import what this file lists, as far as that is safe")
    parser.add_argument(
        "--idle-s", type=float, default=30.0, help="exit after this long without a client or worker"
    )
    parser.add_argument(
        "--loaded-fd",
        type=int,
        help="of whoever started this for a job that is on its way: close it once torch's library is loaded",
    )
    return parser.parse_args()


def _hurried(arguments: argparse.Namespace, server: Server) -> bool:
    """Whether a job waits, also one whose request is not here yet."""
    return arguments.loaded_fd is not None or server.waited_for()


def main() -> None:
    arguments = _arguments()
    streams.guard()  # for the workers, and early: torch's loggers keep the stream they find
    if not sys.flags.safe_path:
        del sys.path[
            0
        ]  # -m put the directory there in which we were started: nothing may be imported from it
    try:
        server = Server(arguments.socket, arguments.key, arguments.idle_s, arguments.cold)
    except Refused as refusal:
        sys.exit(f"spawner: {refusal}")
    newborn: Become | None = None

    def loaded() -> None:
        if arguments.loaded_fd is not None:
            os.close(arguments.loaded_fd)

    try:
        warmth = (
            Warmth(cold=True)
            if arguments.cold
            else warm_up(
                arguments.preload,
                server.pump,
                arguments.learned,
                partial(_hurried, arguments, server),
                loaded,
            )
        )
        if not arguments.cold:
            settle(_hurried(arguments, server))
            warmth.done("the heap is frozen")
            print(f"spawner: phases {json.dumps(warmth.phases)}", flush=True)  # read by bench/start.py
        server.warmed(warmth)
        server.run(lambda: warm_later(warmth))
    except Become as become:
        newborn = become
    if newborn is None:
        os._exit(0)  # nothing to flush, and torch's finalisers take half a second
    server.abandon()
    run = newborn.run
    del newborn, server
    run()


if __name__ == "__main__":
    main()
