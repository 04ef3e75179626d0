"""A process that has imported torch once and forks ranks of scripts: seconds less than torchrun, each time.

Nothing of torchloom is around the ranks; they get the variables that torchrun gives. An order is
    {"script": path, "args": […], "output": path, "rank": 0, "world": 2, "port": 23456}
"""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forker import LIMIT_S, Forker, Hung, Workers, next_order, show_stacks

IMPORTS = ("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo", "torchloom")
ERRORS = ".err"


class Ranks:
    """Ranks that run."""

    def __init__(self, workers: Workers, outputs: list[Path]) -> None:
        self._workers, self._outputs = workers, outputs
        self.pids = workers.pids

    def over(self) -> bool:
        return self._workers.over()

    def printed(self, within_s: float = LIMIT_S) -> list[str]:
        """What each rank printed, when all have ended; with exit code 0, or it fails. Ranks that do not end
        are killed and fail with their stacks."""
        try:
            codes = self._workers.codes(within_s)
        except Hung as hung:
            raise Hung(f"{hung}\n{self._written()}") from None
        if any(codes):
            raise AssertionError(f"exit codes {codes}\n{self._written()}")
        return [output.read_text() for output in self._outputs]

    def _written(self) -> str:
        files = [path for output in self._outputs for path in (output, Path(f"{output}{ERRORS}"))]
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in files if path.exists())


class Forked:
    """Starts ranks of scripts by fork, one script at a time."""

    def __init__(self, forker: Forker) -> None:
        self._forker = forker

    def start(self, script: Path, args: Sequence[Sequence[str]], directory: Path) -> Ranks:
        """`args` has the arguments of each rank. Ranks that an earlier test has left are ended first."""
        self._forker.end()
        outputs = [directory / f"printed{rank}" for rank in range(len(args))]
        every = {"script": str(script), "world": len(args), "port": free_port()}
        orders = [
            {**every, "rank": rank, "args": list(own), "output": str(output)}
            for rank, (own, output) in enumerate(zip(args, outputs, strict=True))
        ]
        return Ranks(self._forker.start(orders), outputs)

    def lines(self, world: int, script: Path, *args: str, directory: Path) -> list[str]:
        """What rank 0 printed, of ranks with the same arguments."""
        return self.start(script, [args] * world, directory).printed()[0].splitlines()


@contextlib.contextmanager
def forked() -> Iterator[Forked]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_") or k == "LOOM_RESTORE_CHECK"}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    forker = Forker([__file__], env)
    try:
        yield Forked(forker)
    finally:
        forker.close()


def free_port() -> int:
    """Below those the kernel gives to outgoing connections: whoever it is for binds it seconds later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _serve() -> None:
    for name in IMPORTS:
        __import__(name)
    order = next_order()
    if order is not None:
        _rank(order)


def _rank(order: dict[str, Any]) -> None:
    """The child's whole life."""
    import traceback

    code = 1
    try:
        for stream, output in ((1, order["output"]), (2, order["output"] + ERRORS)):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        show_stacks(order["output"] + ERRORS)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        rank, world = str(order["rank"]), str(order["world"])
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
        sys.argv = [order["script"], *order["args"]]
        sys.path.insert(0, str(Path(order["script"]).parent))
        runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 the test is to see it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
