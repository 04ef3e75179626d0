"""Tries the links between the nodes of a torchft job: each node connects to replicas of the others.

Only a connection that nobody answers counts as a broken link; one that is refused has been answered. A node
that does not report says nothing about its links. core/broken_links.py decides what follows.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from torchloom.core.broken_links import link
from torchloom.model.quorum import Link

CONNECT_S = 5.0
"""As long as the heartbeat timeout of the lighthouse: the kernel repeats a lost packet twice in this time."""
MOST_ADDRESSES = 256

_NO_ANSWER = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENETDOWN)

Try = Callable[[str, tuple[str, ...]], Awaitable[frozenset[str] | None]]
"""Has a node connect to these addresses. Returns those that did not answer; None: the node did not report."""


async def unanswered(addresses: Iterable[str]) -> frozenset[str]:
    """Which of these addresses of managers do not answer, seen from here."""
    named = tuple(dict.fromkeys(addresses))[:MOST_ADDRESSES]
    found = await asyncio.gather(*(_answers(address) for address in named))
    return frozenset(address for address, answers in zip(named, found, strict=True) if not answers)


async def _answers(address: str) -> bool:
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except TimeoutError:
        return False
    except OSError as error:
        return error.errno not in _NO_ANSWER
    except (ValueError, OverflowError):
        pass  # not an address: nothing is known of the link
    return True


async def check(
    links: Collection[Link], addresses: Mapping[str, str], attempt: Try
) -> tuple[set[Link], set[Link]]:
    """Of these links, which do not work and which do. `addresses`: of a replica on each node."""
    targets = {
        node: tuple(other for pair in links if node in pair for other in pair if other != node)
        for node in addresses
    }
    asked = {node: tuple(addresses[o] for o in others if o in addresses) for node, others in targets.items()}
    nodes = [node for node, wanted in asked.items() if wanted]
    answers = await asyncio.gather(*(attempt(node, asked[node]) for node in nodes))
    broken, seen = set[Link](), dict[Link, int]()
    for node, silent in zip(nodes, answers, strict=True):
        for other in targets[node] if silent is not None else ():
            if other in addresses:
                pair = link(node, other)
                seen[pair] = seen.get(pair, 0) + 1
                if silent is not None and addresses[other] in silent:
                    broken.add(pair)
    return broken, {pair for pair, times in seen.items() if times == 2 and pair not in broken}
