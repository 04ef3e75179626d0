"""Admits hosts by tokens, and revokes them. Pure: the order of the stream decides who gets the last place.

A name that was given to a host is given to no other before it was revoked: a token is no permission to take
over a node.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.turn import Turn
from torchloom.model.admission import Admissions, AdmittedNode, JoinToken
from torchloom.model.events import JoinTokenMade, NodeAdmitted, NodeRevoked

NS_PER_S = 1_000_000_000
REMEMBERED_NS = 24 * 3600 * NS_PER_S
MOST_TOKENS, MOST_REVOKED = 256, 16_384
"""The oldest make room. A revoked key that is forgotten was revoked so long ago that 16,384 came after it."""


def token_made(turn: Turn, event: JoinTokenMade) -> None:
    known = turn.fleet.admissions
    made = JoinToken(
        id=event.token,
        digest=event.digest,
        by=event.by,
        until_ns=turn.now_ns + int(event.valid_s * NS_PER_S),
        left=event.hosts,
        node=event.node,
    )
    # For a while, whoever uses it later learns why it is worth nothing.
    known.tokens = {id: one for id, one in known.tokens.items() if one.until_ns + REMEMBERED_NS > turn.now_ns}
    while len(known.tokens) >= MOST_TOKENS:
        # Every pod uses one up: they must not push out one that a person has not used yet.
        used_up = (id for id, one in known.tokens.items() if one.left <= 0)
        del known.tokens[next(used_up, next(iter(known.tokens)))]
    known.tokens[made.id] = made


def why_not(known: Admissions, token: str, digest: str, node: str, key: str, now_ns: int) -> str:
    """Why this token does not admit that host now; empty if it does."""
    found = known.tokens.get(token)
    if found is None or found.digest != digest:
        return "this is no join token of this cluster, or it has ended"
    if found.until_ns <= now_ns:
        return "the join token has expired"
    if found.left <= 0:
        return "the join token has been used up"
    if found.node and found.node != node:
        return f"the join token is for the node {found.node} only"
    if node in known.nodes and known.nodes[node].key != key:
        return f"the node {node} has been admitted before; revoke it first (`loom node revoke {node}`)"
    if key in known.revoked:
        return "this key has been revoked"
    return ""


def node_admitted(turn: Turn, event: NodeAdmitted) -> None:
    known = turn.fleet.admissions
    if why_not(known, event.token, event.digest, event.node, event.key, turn.now_ns):
        return  # another host was admitted with the last place, or it expired on its way
    if event.node in known.nodes:
        return  # the same host asks again, because it did not get the answer
    found = known.tokens[event.token]
    known.tokens[event.token] = replace(found, left=found.left - 1)
    known.nodes[event.node] = AdmittedNode(key=event.key, token=event.token, at_ns=turn.now_ns, by=found.by)
    known.revoked_nodes.pop(event.node, None)


def node_revoked(turn: Turn, event: NodeRevoked) -> None:
    known = turn.fleet.admissions
    admitted = known.nodes.pop(event.node, None)
    if admitted is None:
        return
    # By the stream's clock, rounded up: what was signed in that second is void, too.
    at_s = turn.now_ns // NS_PER_S + 1
    for revoked, what in ((known.revoked, admitted.key), (known.revoked_nodes, event.node)):
        revoked.pop(what, None)
        while len(revoked) >= MOST_REVOKED:
            del revoked[next(iter(revoked))]
        revoked[what] = at_s
    # A token that was made for this node alone, and not used yet, must not bring it back.
    known.tokens = {id: one for id, one in known.tokens.items() if one.node != event.node}
