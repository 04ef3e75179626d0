"""Which network interface collectives use, on hosts that have several.

gloo takes the interface of the host's own name, which on many systems is loopback: ranks on other hosts then
wait for it in vain. NCCL chooses well by itself and is told only what a person chose.
"""

from __future__ import annotations

import ipaddress
import os
import socket

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
    """The interface that has this address; empty for loopback, and if none has it."""
    import psutil  # only where a job has several hosts

    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return ""
    further_back = ""
    for name, addresses in psutil.net_if_addrs().items():
        texts = [one.address.partition("%")[0] for one in addresses]
        plain = [ipaddress.ip_address(text) for text in texts if _is_address(text)]
        same = [one for one in plain if one.version == wanted.version]
        if wanted not in same or same[0].is_loopback:
            continue
        if same[0] == wanted:
            return str(name)
        further_back = str(name)
    # gloo uses the first address of an interface. If the address is another one, gloo may choose better by
    # itself (it takes the address of the host's name), but not if that is loopback.
    return further_back if further_back and not wanted.is_link_local and _is_named_loopback() else ""


def _is_named_loopback() -> bool:
    """Whether this host's own name leads to loopback, or nowhere."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return True
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
