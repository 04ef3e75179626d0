"""What each role may do, decided on the route that the router matched and never on the text of a path.

A path can be written in many ways; which operation it reached is known only after the router has chosen. The
check is a dependency of every route (`app.py` puts it there), so a new route cannot forget it.
"""

from __future__ import annotations

from fastapi import Request

from torchloom.api.access_guard import SAFE_METHODS, identity
from torchloom.errors import NotAllowed

PROBES = frozenset({"healthLive", "healthReady"})
"""Not in the API's document: their answer is a status alone."""
OPEN = PROBES | {"health", "login", "join", "joinPod", "joinAuthorities"}
"""Operations that need no token: they report only what everybody may know, or take a token of their own."""
READERS_MAY = frozenset({"logout", "loginLink"})
"""What a reader may do although it is not a GET."""
ADMINS_ONLY = frozenset({"tokens", "makeToken", "removeToken", "inject", "makeJoinToken", "revokeNode"})


async def check_role(request: Request) -> None:
    """Refuse an operation that the caller's role does not allow."""
    operation = getattr(request.scope.get("route"), "operation_id", None)
    if operation in OPEN:
        return
    if operation is None or "loom.caller" not in request.scope:
        raise NotAllowed("This operation has no role, so nobody may use it")
    who = identity(request)
    if who.role != "admin" and operation in ADMINS_ONLY:
        raise NotAllowed(f"The token {who.name} may not do this: it needs an admin's")
    if who.role == "read" and request.method not in SAFE_METHODS and operation not in READERS_MAY:
        raise NotAllowed(f"The token {who.name} may only read")
