"""A cluster whose hosts have IPv6 addresses only: the authority, joining, and a job across two hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import LOOM, LoomHome, wait_for

from torchloom.chaos.hosts import INTERFACE, Hosts, why_not

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
for _ in range(3):
    dist.all_reduce(value)
told = f"{os.environ['MASTER_ADDR']} {os.environ['GLOO_SOCKET_IFNAME']} {value.item():g}"
with open(f"{sys.argv[1]}-{dist.get_rank()}", "w") as notes:
    notes.write(told)
dist.barrier()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if why_not():
        assert os.environ.get("CI") != "true", f"hosts cannot be made: {why_not()}"
        pytest.skip(f"IPV6 NOT TESTED: {why_not()}")
    with Hosts(2, name="loom6", network="fd00:6:") as made:
        for host in range(2):  # another device, on which nobody can be reached
            for words in (
                ["link", "add", "another0", "type", "bridge"],
                ["addr", "add", f"fd00:7::{host + 1}/128", "nodad", "dev", "another0"],
                ["link", "set", "another0", "up"],
            ):
                subprocess.run(made.command(host, ["ip", *words]), check=True)
        yield made


@pytest.mark.long  # every day: the rounds of test_cluster_chaos.py that are not long have IPv6 too
def test_a_cluster_and_a_job_across_hosts_with_ipv6_only(hosts: Hosts, tmp_path: Path) -> None:
    made, first = tmp_path / "prod", hosts.address(0)
    command = [LOOM, "cluster", "init", str(made), f"--host=a={first}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f" [{first}]:.torchloom/cluster" in printed, "as scp reads it"
    homes = []
    for name in ("a", "b"):
        root = tmp_path / name
        root.mkdir(mode=0o700)
        homes.append(LoomHome(root))
    (made / "a").rename(homes[0].home.root / "cluster")

    def loom(host: int, *words: str) -> str:
        done = subprocess.run(
            hosts.command(host, [LOOM, *words]),
            env=homes[host].env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}\n{homes[host].logs()}"
        return done.stdout

    try:
        assert f"https://[{first}]:8700" in loom(0, "up", "--slots", "1")
        command_line = loom(0, "node", "token").strip().splitlines()[-1].split()
        assert command_line[:2] == ["loom", "join"], command_line
        token = command_line[command_line.index("--token") + 1]
        # Without brackets, as a person types it.
        assert hosts.address(1) in loom(1, "join", first, "--token", token, "--node", "b", "--slots", "1")
        wait_for(lambda: loom(0, "nodes").count(" ready") == 2, "two nodes")
        script = tmp_path / "train.py"
        script.write_text(SCRIPT)
        loom(0, "run", "--nnodes", "2", str(script), str(tmp_path / "notes"))
        told = [(tmp_path / f"notes-{rank}").read_text().split() for rank in range(2)]
        assert {one[1] for one in told} == {INTERFACE} and {one[2] for one in told} == {"8"}
        assert told[0][0] == told[1][0] and told[0][0] in (first, hosts.address(1))
    finally:
        for host in (1, 0):
            subprocess.run(
                hosts.command(host, [LOOM, "down", "--stop-jobs"]), env=homes[host].env, check=False
            )
