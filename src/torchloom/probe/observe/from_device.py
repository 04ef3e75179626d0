"""Numbers that a device computes, on their way to the host. Nothing here waits for a device, whichever it is.

`fetch` queues a copy and an event behind it; the caller checks the event later. A device that has
no pinned memory or no events is left alone: less is reported, and no step becomes slower.
"""

from __future__ import annotations

from typing import Any

_without: set[str] = set()
"""Types of devices that cannot do it."""


def fetch(torch: Any, value: Any) -> tuple[Any, Any] | None:
    """A tensor on the host and the event after which it holds `value`; None where the device cannot."""
    kind = value.device.type
    if kind in _without:
        return None
    try:
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        event = torch.Event(value.device)
        host.copy_(value, non_blocking=True)
        event.record()
    except (RuntimeError, NotImplementedError, AttributeError):
        _without.add(kind)
        return None
    return host, event


def is_capturing(torch: Any, device: Any) -> bool:
    """Whether what is queued now would become part of a graph that the script captures."""
    module = getattr(torch, device.type, None)
    asked = getattr(module, "is_current_stream_capturing", None)
    return device.type != "cpu" and asked is not None and bool(asked())
