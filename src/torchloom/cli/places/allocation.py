"""A Slurm allocation as a small cluster of its own; run as a module by the script of `loom sbatch`.

`serve` runs on the first node: a NATS server with one account per node of the allocation, and a control
service; either is started again when it dies. `wait` prints its address when it answers. `agent` is the
agent of the node that srun started it on. The nodes share one directory with the agents' secret
keys and the certificate that proves the bus, private to the user; everything else is on local disks. `watch`
gives up nodes that are silent and that Slurm has given up, too (slurm_watch.py). `sweep`
removes what agents that Slurm killed left in shared memory of a node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torchloom.bus import nats_config
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats_binary import find_server
from torchloom.cli.cluster.authority import Authority, check_available, write_issued
from torchloom.cli.cluster.host_files import bracketed
from torchloom.cli.places.slurm_nodes import Slurm
from torchloom.cli.places.slurm_watch import SlurmWatch
from torchloom.cli.service.plan import Plan
from torchloom.errors import LoomError, TimedOut, UsageError
from torchloom.home import Home, private_directory
from torchloom.model.ids import token_from

READY_WITHIN_S = 120.0
LOOK_EVERY_S = 0.1
AGAIN_S, AGAIN_AT_MOST_S = 0.5, 10.0
FILE, CA_FILE = "allocation.json", "ca.pem"
LEAVE_WITHIN_S = 600.0
"""Only a bound: workers end with the job, and Slurm kills what outlives its grace period."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m torchloom.cli.places.allocation")
    parser.add_argument("what", choices=("serve", "wait", "agent", "watch", "sweep"))
    parser.add_argument("--shared", type=Path, help="directory that every node sees")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--while", dest="alive", type=int, help="pid of `serve`")
    options = parser.parse_args(argv)
    if options.what != "sweep" and options.shared is None:
        parser.error("--shared is needed")
    try:
        match options.what:
            case "serve":
                return serve(Home.default(), options.shared, Slurm())
            case "wait":
                return wait(Home.default(), options.shared, options.alive)
            case "watch":
                SlurmWatch(Slurm()).run()
                return 0
            case "sweep":
                return remove_left()
            case _:
                return run_agent(options.shared, Slurm(), options.slots)
    except LoomError as error:
        print(f"loom: {error}", file=sys.stderr)
        return error.exit_code


def serve(home: Home, shared: Path, slurm: Slurm) -> int:
    """Bus and control service of the allocation, until SIGTERM."""
    home.prepare()
    for path in (shared, shared / "seeds"):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        private_directory(path)
    nodes = [token_from(name, "node") for name in slurm.nodes()]
    address = slurm.address()
    bus_port, api_port = _free_port(address), _free_port("127.0.0.1")
    seeds = {name: new_seed() for name in (*nodes, "weaver")}
    for name, seed in seeds.items():
        _write(shared / "seeds" / name if name != "weaver" else home.root / "weaver.seed", seed)
    config = json.loads(
        nats_config.render(
            server_name=f"loom-{socket.gethostname()}",
            port=bus_port,
            store_dir=str(home.nats_dir),
            log_file=str(home.logs_dir / "nats.log"),
            weaver=public_key(seeds["weaver"]),
            agents={node: public_key(seeds[node]) for node in nodes},
        )
    )
    config["host"] = address
    config["tls"] = _certificate(home, shared, [address, socket.gethostname()])
    _write(home.root / "nats.conf", json.dumps(config, indent=2, ensure_ascii=False))
    url = f"tls://{bracketed(address)}:{bus_port}"
    Plan(api_port).write(home)
    weaver = {
        "LOOM_NATS_URL": url,
        "LOOM_NATS_SEED_FILE": str(home.root / "weaver.seed"),
        "LOOM_NATS_CA": str(shared / CA_FILE),
    }
    commands = {
        "nats": ([str(find_server()), "-c", str(home.root / "nats.conf")], {}),
        "weaver": ([sys.executable, "-P", "-m", "torchloom.cli", "weaver", "--port", str(api_port)], weaver),
        "watch": ([sys.executable, "-P", "-m", __spec__.name, "watch", "--shared", str(shared)], {}),
    }
    _write(shared / FILE, json.dumps({"url": url, "nodes": nodes, "home": str(home.root)}))
    print(f"torchloom: on {socket.gethostname()}: LOOM_HOME={home.root} loom top", file=sys.stderr)
    return _keep(home, commands)


def _certificate(home: Home, shared: Path, names: list[str]) -> dict[str, str]:
    """Make the certificate of this allocation's bus, and an authority for it that signs nothing else."""
    check_available()
    authority = Authority(home.root / "ca")
    authority.make(f"torchloom, Slurm job {os.environ.get('SLURM_JOB_ID', '')}")
    write_issued(home.root, *authority.issue(names))
    authority.key_file.unlink()
    _write(shared / CA_FILE, authority.bundle())
    return {"cert_file": str(home.root / "host.pem"), "key_file": str(home.root / "host.key")}


def _keep(home: Home, commands: dict[str, tuple[list[str], dict[str, str]]]) -> int:
    """Keep the processes alive until we are asked to end; then end them, the bus last."""
    ending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: ending.append(got))
    running: dict[str, subprocess.Popen[bytes]] = {}
    due_s, wait_s = dict.fromkeys(commands, 0.0), dict.fromkeys(commands, AGAIN_S)
    while not ending:
        for name, (command, env) in commands.items():
            process = running.get(name)
            if process is not None and process.poll() is not None:
                print(f"torchloom: {name} ended with {process.returncode}; it is restarted", file=sys.stderr)
                due_s[name] = time.monotonic() + wait_s[name]
                wait_s[name] = min(AGAIN_AT_MOST_S, 2 * wait_s[name])
                del running[name]
            if name not in running and time.monotonic() >= due_s[name]:
                with (home.logs_dir / f"{name}.log").open("ab") as log:
                    running[name] = subprocess.Popen(
                        command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=os.environ | env
                    )
        time.sleep(LOOK_EVERY_S)
    for name in ("watch", "weaver", "nats"):
        if (process := running.get(name)) is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return 0


def wait(home: Home, shared: Path, alive: int | None) -> int:
    """Print the address of the control service when it answers; fail if `serve` ends before."""
    from torchloom.client import Client, Endpoint

    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if alive is not None and not Path(f"/proc/{alive}").exists():
            raise TimedOut("the control service of the allocation ended", hint=f"see {home.logs_dir}")
        if (shared / FILE).exists():
            try:
                found = Endpoint.of_home(home)
                Client(found).jobs()
                print(found.url)
                return 0
            except LoomError:
                pass
        time.sleep(LOOK_EVERY_S)
    raise TimedOut(
        f"the control service of the allocation does not answer after {READY_WITHIN_S:g} s",
        hint=f"see {home.logs_dir}",
    )


def run_agent(shared: Path, slurm: Slurm, slots: int) -> int:
    """Run the agent of this node, under the name that Slurm has for it."""
    node = token_from(slurm.node, "node")
    seed = shared / "seeds" / node
    if not seed.exists():
        raise UsageError(
            f"{seed} does not exist on {slurm.node}",
            hint="set LOOM_SHARED to a directory that every node of the allocation sees",
        )
    url = str(json.loads((shared / FILE).read_bytes())["url"])
    os.environ |= {
        # A disk of this node: several agents must not share a home.
        "LOOM_HOME": f"{os.environ['LOOM_HOME']}-{node}",
        "LOOM_NODE": node,
        "LOOM_NATS_URL": url,
        "LOOM_NATS_SEED_FILE": str(seed),
        "LOOM_NATS_INBOX": nats_config.agent_inbox(node),
        "LOOM_NATS_LEADER": nats_config.LEADER,
        "LOOM_NATS_CA": str(shared / CA_FILE),
        "LOOM_SLOTS": str(slots),
    }
    from torchloom.cli.service.agent import main as agent

    # Slurm sends SIGTERM when it preempts: the allocation's grace period decides how long there is.
    status = agent(["--address", slurm.address(), "--leave-within", str(LEAVE_WITHIN_S)])
    if status == 0:
        shutil.rmtree(os.environ["LOOM_HOME"], ignore_errors=True)
    return status


def remove_left() -> int:
    """For an epilog: report what was removed. Nothing that a process uses is touched."""
    from torchloom.agent.ownership import sweep

    for path in sweep():
        print(f"loom: removed {path}, left by an agent that was killed", file=sys.stderr)
    return 0


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and readable by us alone."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
