"""A process that has imported torch once and forks ranks of scripts: seconds less than torchrun, each time.

Nothing of torchloom is around the ranks; they get the variables that torchrun gives. As a program, it reads
one request a line and answers each with the pids and then, when all have ended, with the exit codes:
    {"script": path, "args": [[…] for every rank], "outputs": [path for every rank]}
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

IMPORTS = ("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo", "torchloom")
ERRORS = ".err"


class Ranks:
    """Ranks that run."""

    def __init__(self, answers: IO[str], outputs: list[Path]) -> None:
        self._answers, self._outputs = answers, outputs
        self.pids: list[int] = json.loads(answers.readline())

    def over(self) -> bool:
        return bool(select.select([self._answers], [], [], 0)[0])

    def printed(self) -> list[str]:
        """What each rank printed, when all have ended; with exit code 0 or it is told."""
        codes = json.loads(self._answers.readline())
        printed = [output.read_text() for output in self._outputs]
        if any(codes):
            errors = [Path(f"{output}{ERRORS}").read_text() for output in self._outputs]
            raise AssertionError(f"exit codes {codes}\n" + "\n".join(printed + errors))
        return printed


class Forked:
    """Starts ranks of scripts by fork, one script at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, script: Path, args: Sequence[Sequence[str]], directory: Path) -> Ranks:
        """`args` has the arguments of each rank."""
        outputs = [directory / f"printed{rank}" for rank in range(len(args))]
        asked = {"script": str(script), "args": [list(a) for a in args], "outputs": list(map(str, outputs))}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ranks(self._process.stdout, outputs)

    def lines(self, world: int, script: Path, *args: str, directory: Path) -> list[str]:
        """What rank 0 printed, of ranks with the same arguments."""
        return self.start(script, [args] * world, directory).printed()[0].splitlines()


@contextlib.contextmanager
def forked() -> Iterator[Forked]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_") or k == "LOOM_RESTORE_CHECK"}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Forked(process)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(120)


def free_port() -> int:
    """Below those the kernel gives to outgoing connections: whoever it is for binds it seconds later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _serve() -> None:
    for name in IMPORTS:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        port = free_port()
        ranks = [os.fork() or _rank(rank, port, request) for rank in range(len(request["args"]))]
        print(json.dumps(ranks), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]), flush=True)


def _rank(rank: int, port: int, request: dict[str, Any]) -> int:
    """The child's whole life."""
    import traceback

    code = 1
    try:
        for stream, suffix in ((1, ""), (2, ERRORS)):
            output = request["outputs"][rank] + suffix
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        world = str(len(request["args"]))
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.argv = [request["script"], *request["args"][rank]]
        sys.path.insert(0, str(Path(request["script"]).parent))
        runpy.run_path(request["script"], run_name="__main__")
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
