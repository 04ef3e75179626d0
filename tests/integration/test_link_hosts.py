"""The delay matrix between hosts that have real cables: one slow direction, one slow host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, permutations
from pathlib import Path

import pytest

from torchloom.chaos.hosts import Hosts, why_not
from torchloom.core.policy.link_findings import judge, rows

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

MEETS = """
import json, os, sys, time
from pathlib import Path
from torchloom.model.transaction.messages import AttemptId
from torchloom.probe.links.delay_matrix import Links
from torchloom.probe.steering.registers import Registers

class Files(Registers):  # a store that needs no torch: the hosts share a disk
    def compare_set(self, key, value, until_ns):
        path = Path(sys.argv[1], key.replace("/", "_"))
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(value)
        written.rename(path)
        return value

    def look(self, keys, until_ns):
        paths = {key: Path(sys.argv[1], key.replace("/", "_")) for key in keys}
        return {key: path.read_text() for key, path in paths.items() if path.exists()}

rank, world = int(sys.argv[2]), int(sys.argv[3])
environment = {"MASTER_ADDR": sys.argv[4], "MASTER_PORT": "1"}
links = Links(Files({}), environment, rank, world, lambda peer: 0)
Path(sys.argv[1], f"{sys.argv[5]}-begins-{rank}").touch()
while len(list(Path(sys.argv[1]).glob(f"{sys.argv[5]}-begins-*"))) < world:  # as ranks at an agreed boundary
    time.sleep(0.001)
print(json.dumps(links.measure(AttemptId(1, 1, int(sys.argv[5])), {"within_s": 4.0})))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        with Hosts(4) as made:
            yield made
    except subprocess.SubprocessError as error:
        pytest.skip(f"this machine cannot make hosts: {error}")


Findings = list[tuple[str, tuple[int, ...]]]


def measure(hosts: Hosts, store: Path, attempt: int) -> Findings | None:
    """What is found; nothing if not all pairs could be measured, as on a machine that stands still."""
    running = [
        hosts.start(
            rank,
            [sys.executable, "-c", MEETS, str(store), str(rank), "4", hosts.address(0), str(attempt)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(hosts.count)
    ]
    told = [tuple(map(tuple, json.loads(one.communicate(timeout=240)[0]))) for one in running]
    found = rows(told)
    if {(one.sender, one.receiver) for one in found} != set(permutations(range(4), 2)):
        return None
    return [(finding.kind, finding.ranks) for finding in judge(found, {})]


def test_a_slow_direction_and_a_slow_host_are_told_apart(hosts: Hosts, tmp_path: Path) -> None:
    attempts = count(1)

    def expect(wanted: Findings) -> None:
        """Measured again where others took the cores: then a healthy link is really slow for a while."""
        found = [measure(hosts, tmp_path, next(attempts))]
        while found[-1] != wanted:
            assert len(found) < 10, f"{wanted} was expected: {found}"
            found.append(measure(hosts, tmp_path, next(attempts)))

    expect([])
    hosts.limit(1, 2, 4_000_000)
    expect([("link-slow", (1, 2))])
    hosts.limit(1, 2, 0)
    for other in (0, 1, 2):
        hosts.limit(3, other, 4_000_000)
    expect([("sender-slow", (3,))])
