"""Hosts join and are revoked: tokens, claims, and the list of revoked keys on the bus.

The core decides, in the order of the stream, what a token is worth. An `Issuer` signs the claims; only a
control host of a cluster has one. A pod has no join token: Kubernetes vouches for it (`PodReviewer`), and it
gets one that is used at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from typing import Protocol

from torchloom.core.nodes.admission import why_not
from torchloom.errors import Conflict, LoomError, NotAllowed, NotFound, UsageError
from torchloom.model.admission import POD, JoinAnswer, ProvenPod
from torchloom.model.events import JoinTokenMade, NodeAdmitted, NodeRevoked
from torchloom.model.ids import check_token
from torchloom.weaver.publisher import Publisher

log = logging.getLogger(__name__)

PREFIX = "loomjoin1"
LOOK_EVERY_S = 0.5
LONGEST_VALID_S, MOST_HOSTS = 7 * 24 * 3600.0, 1024
POD_PREFIX, POD_TOKEN_S = "loompod1", 60.0
REVIEWS_AT_ONCE = 8


class Issuer(Protocol):
    """Signs for a cluster."""

    servers: tuple[str, ...]
    apis: tuple[str, ...]

    def authorities(self) -> str:
        """The certificates (PEM) that prove servers of this cluster."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of the certificate of the authority that signs now."""
        ...

    def claims(self, node: str, key: str) -> str:
        """What makes the holder of a key the agent of a node."""
        ...

    def api_token(self, node: str, key: str) -> str:
        """The secret with which the pod that has this key may call the API."""
        ...

    async def publish_revoked(self, revoked: dict[str, int]) -> None:
        """Make all servers of the bus refuse these keys and end their connections. Raises LoomError."""
        ...


class PodReviewer(Protocol):
    """Asks Kubernetes whose token this is."""

    async def review(self, token: str) -> ProvenPod:
        """Raises NotAllowed unless it is the token of a pod that may join."""
        ...


class Admission:
    def __init__(self, stream: Publisher, issuer: Issuer | None, reviewer: PodReviewer | None = None) -> None:
        self._stream = stream
        self._issuer = issuer
        self._reviewer = reviewer
        self._reviews = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._published: dict[str, int] = {}
        self._publishing = asyncio.Lock()

    def authorities(self) -> str:
        """The certificates (PEM) that prove servers of this cluster."""
        return self._signer().authorities()

    def addresses(self) -> tuple[str, ...]:
        """Where hosts can join."""
        return self._signer().apis

    async def make_token(self, by: str, valid_s: float, hosts: int, node: str) -> str:
        """A new token; only its digest is kept."""
        self._stream.check_ready()
        signer = self._signer()
        if not 0 < valid_s <= LONGEST_VALID_S:
            raise UsageError(f"A join token is valid for up to {LONGEST_VALID_S:g} s.")
        if not 1 <= hosts <= MOST_HOSTS:
            raise UsageError(f"A join token admits 1 to {MOST_HOSTS} hosts.")
        if node and hosts != 1:
            raise UsageError("A join token for one name admits one host.")
        id, secret = secrets.token_hex(4), secrets.token_hex(20)
        made = JoinTokenMade(
            token=id,
            digest=_digest(secret),
            by=by,
            valid_s=valid_s,
            hosts=hosts,
            node=check_token(node, "node name") if node else "",
        )
        await self._stream.say("node", made)
        return f"{PREFIX}.{id}.{secret}.{signer.fingerprint()}"

    async def admit_pod(self, token: str, key: str) -> tuple[str, JoinAnswer]:
        """Admit the pod whose service account token this is, as the node with its name, and as no other."""
        self._stream.check_ready()
        signer = self._signer()
        if self._reviewer is None:
            raise Conflict(
                "This service does not run in Kubernetes", hint="join with a token of `loom node token`"
            )
        _check_key(key)
        async with self._reviews:
            pod = await self._reviewer.review(token)
        admitted = self._stream.fleet.admissions.nodes.get(pod.node)
        if admitted is not None and admitted.key == key:  # it asks again, because it did not get the answer
            return pod.node, self._pod_answer(signer, pod.node, key)
        self._check_pod(pod.node)
        given = await self.make_token(f"{POD}{pod.namespace}/{pod.pod}", POD_TOKEN_S, 1, pod.node)
        self._check_pod(pod.node)  # it may have been revoked before the token was recorded; later voids it
        await self.admit(given, pod.node, key)
        return pod.node, self._pod_answer(signer, pod.node, key)

    def pod_of(self, token: str) -> str:
        """The node whose pod this token of the API was made for, while it is admitted; else empty."""
        prefix, _, rest = token.partition(".")
        node, _, _ = rest.partition(".")
        admitted = self._stream.fleet.admissions.nodes.get(node)
        if prefix != POD_PREFIX or self._issuer is None or admitted is None:
            return ""
        right = f"{POD_PREFIX}.{node}.{self._issuer.api_token(node, admitted.key)}"
        return node if hmac.compare_digest(token.encode(errors="replace"), right.encode()) else ""

    def _check_pod(self, node: str) -> None:
        if node in self._stream.fleet.admissions.revoked_nodes:
            raise NotAllowed(
                f"the node {node} has been revoked", hint="delete its pod: the next one may join"
            )

    def _pod_answer(self, signer: Issuer, node: str, key: str) -> JoinAnswer:
        token = f"{POD_PREFIX}.{node}.{signer.api_token(node, key)}"
        return JoinAnswer(signer.claims(node, key), signer.servers, signer.apis, signer.authorities(), token)

    async def admit(self, token: str, node: str, key: str) -> JoinAnswer:
        """Admit a host with this public key under this name, if the token allows it."""
        self._stream.check_ready()
        signer = self._signer()
        check_token(node, "node name")
        _check_key(key)
        parts = token.split(".")
        if len(parts) != 4 or parts[0] != PREFIX:
            raise NotAllowed("That is no join token", hint="`loom node token` makes one")
        id, digest = parts[1], _digest(parts[2])
        # Here first: a stranger must not be able to fill the stream.
        self._check(id, digest, node, key)
        await self._stream.say("node", NodeAdmitted(node=node, key=key, token=id, digest=digest))
        admitted = self._stream.fleet.admissions.nodes.get(node)
        if admitted is None or admitted.key != key:
            self._check(id, digest, node, key)
            raise NotAllowed(f"{node} was not admitted", hint="make a new token with `loom node token`")
        return JoinAnswer(signer.claims(node, key), signer.servers, signer.apis, signer.authorities())

    async def revoke(self, node: str, by: str) -> None:
        """Take back a host's credential. Returns when the bus refuses it."""
        self._stream.check_ready()
        self._signer()
        if node not in self._stream.fleet.admissions.nodes:
            raise NotFound(
                f"{node[:64]} has no credential of its own",
                hint="`loom node revoke` is for hosts that joined with `loom join`",
            )
        await self._stream.say("node", NodeRevoked(node=node, by=by))
        await self._publish()

    async def run(self) -> None:
        """A weaver may die between recording a revocation and publishing it: the leading one makes it good,
        also for a server whose files were lost."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._issuer is None or not self._stream.active:
                self._published = {}
                continue
            try:
                await self._publish()
            except LoomError as error:
                log.warning("revoked hosts could not be published: %s; trying again", error)

    async def _publish(self) -> None:
        async with self._publishing:
            wanted = dict(self._stream.fleet.admissions.revoked)
            if wanted != self._published:
                await self._signer().publish_revoked(wanted)
                self._published = wanted

    def _check(self, id: str, digest: str, node: str, key: str) -> None:
        fleet = self._stream.fleet
        refusal = why_not(fleet.admissions, id, digest, node, key, fleet.now_ns)
        if refusal:
            raise NotAllowed(refusal[0].upper() + refusal[1:])

    def _signer(self) -> Issuer:
        if self._issuer is None:
            raise Conflict(
                "This service stands alone: hosts can join only a cluster", hint="see `loom cluster init`"
            )
        return self._issuer


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _check_key(key: str) -> None:
    if not (len(key) == 56 and key.startswith("U") and key.isascii() and key.isalnum()):
        raise UsageError("That is no public key of a NATS user.")
