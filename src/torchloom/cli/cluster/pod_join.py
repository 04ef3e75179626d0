"""A pod becomes a node: it makes a key, presents the token of its service account, and keeps what it gets.

LOOM_JOIN_ADDRESS names the control service, LOOM_JOIN_TOKEN_FILE the token, LOOM_CA the authorities that
prove the service. The key is made in the pod's own volume and never leaves it; an agent that is started again
in the same pod uses it again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from torchloom.bus.keys import new_seed, public_key
from torchloom.cli.cluster.fetching import TIMEOUT_S
from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.client import Client, Endpoint
from torchloom.errors import UsageError
from torchloom.home import Home

log = logging.getLogger(__name__)

ADDRESS, TOKEN_FILE = "LOOM_JOIN_ADDRESS", "LOOM_JOIN_TOKEN_FILE"
AGAIN_S, AGAIN_AT_MOST_S = 1.0, 10.0


def must_join(home: Home, env: Mapping[str, str] = os.environ) -> bool:
    """Whether this pod is to become a node, and is not yet one."""
    return bool(env.get(ADDRESS)) and JoinedNode.read(home) is None


def join_as_pod(home: Home, own_address: str, env: Mapping[str, str] = os.environ) -> JoinedNode:
    """Raises LoomError if the control service does not answer or refuses."""
    named, ca = env.get(TOKEN_FILE, ""), env.get("LOOM_CA", "")
    if not named or not ca:
        raise UsageError(f"{ADDRESS} is set; {TOKEN_FILE} and LOOM_CA must be, too")
    try:
        token = Path(named).read_text().strip()  # read each time: the kubelet renews it
    except OSError as error:
        raise UsageError(f"the token of this pod cannot be read: {named} ({error.strerror})") from None
    seed = _own_seed(home)
    with Client(Endpoint(env[ADDRESS], "", ca=ca), timeout_s=TIMEOUT_S) as api:
        answer = api.join_pod({"token": token, "key": public_key(seed)})
    made = JoinedNode(
        answer["node"],
        own_address,
        tuple(answer["servers"]),
        tuple(answer["addresses"]),
        seed,
        answer["claims"],
        api_token=answer["api_token"],
    )
    made.write(home, answer["ca"])
    return made


def _own_seed(home: Home) -> str:
    """The key of this pod. Kept before it is presented: if the answer is lost, the same key asks again."""
    path = home.root / "pod.seed"
    if path.exists():
        return path.read_text().strip()
    seed = new_seed()
    new = path.with_name(".pod.seed")
    new.touch(mode=0o600)
    new.write_text(seed + "\n")
    new.replace(path)
    return seed
