"""nats-py, imported without aiohttp. It needs aiohttp for WebSockets only, which no address of ours names,
and importing it takes longer than importing the rest of an agent.

Import `nats` from here and nowhere else.
"""

from __future__ import annotations

import sys

_present = "aiohttp" in sys.modules
if not _present:
    sys.modules["aiohttp"] = None  # type: ignore[assignment] # "there is none", for the next lines only
try:
    import nats
    import nats.aio.client
    import nats.errors
    import nats.js.errors
finally:
    if not _present:
        del sys.modules["aiohttp"]

__all__ = ["nats"]
