"""One event applied, and what people are shown of it."""

from __future__ import annotations

from torchloom.core.changes import apply_and_compare
from torchloom.core.notices import notice_of
from torchloom.model.events import Envelope
from torchloom.model.fleet import Fleet
from torchloom.model.notice import Notice


def apply_and_tell(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> Notice | None:
    change = apply_and_compare(fleet, envelope, seq, now_ns)
    return notice_of(change) if change is not None else None
