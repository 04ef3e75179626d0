"""The process of one lighthouse: `python -m torchloom.agent.lighthouse RECORD SOCKET`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

from torchloom.agent.lighthouse import records
from torchloom.agent.lighthouse.beacon import Beacon
from torchloom.agent.lighthouse.records import BeaconRecord
from torchloom.agent.lighthouse.relay import Relay
from torchloom.spawner.unix_socket import usable_address


def main(record_file: str, socket_file: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    path, at = Path(record_file), Path(socket_file)
    record = records.read(path)
    if record is None:
        print(f"{path} holds no record of a lighthouse", file=sys.stderr)
        return 1
    control = socket.socket(socket.AF_UNIX)
    at.unlink(missing_ok=True)
    with usable_address(at) as address:
        control.bind(address)
    control.listen(16)
    mine = at.stat().st_ino
    try:
        asyncio.run(_serve(path, record, control))
    finally:
        with contextlib.suppress(FileNotFoundError):
            if at.stat().st_ino == mine:  # it may be that of the next one already
                at.unlink()
    return 0


async def _serve(path: Path, record: BeaconRecord, control: socket.socket) -> None:
    beacon = Relay(path, record) if record.relays else Beacon(path, record)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, beacon.over.set)
    await beacon.run(control)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
