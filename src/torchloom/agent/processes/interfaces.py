"""Which network interface collectives use, on hosts that have several.

gloo takes the interface of the host's own name, which on many systems is loopback: ranks on other hosts then
wait for it in vain. NCCL chooses well by itself and is told only what a person chose.
"""

from __future__ import annotations

import ipaddress
import os

CHOSEN = "LOOM_INTERFACE"


def settings(address: str, hosts: int) -> dict[str, str]:
    """What a worker of a job on so many hosts finds in its environment, unless its job says otherwise."""
    if hosts < 2:
        return {}
    chosen = os.environ.get(CHOSEN, "")
    if chosen:
        return {"GLOO_SOCKET_IFNAME": chosen, "NCCL_SOCKET_IFNAME": chosen}
    found = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": found} if found else {}


def interface_of(address: str) -> str:
    """The interface that has this address; empty for loopback, and if none or no first one has it."""
    import psutil  # only where a job has several hosts

    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        texts = [one.address.partition("%")[0] for one in addresses]
        plain = [ipaddress.ip_address(text) for text in texts if _is_address(text)]
        same = [one for one in plain if one.version == wanted.version]
        # gloo uses the first address of an interface: one that is further back would not be used.
        if same and same[0] == wanted and not wanted.is_loopback:
            return str(name)
    return ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
