"""The host program is sacred: a failure of ours means less telemetry, never an exception in the script.

Every entry point from the script into the probe is wrapped here, and this is the only wide `except` of the
probe. An entry that keeps failing is switched off. What is not an error passes: the stop at a boundary
(a SystemExit) and the user's own Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchloom.probe.steering.stopping import Interrupted, Lost

LIMIT = 3
"""Failures after which an entry point is switched off."""


class Guard:
    """Wraps entry points and counts what it caught. `off` silences all of them (in forked children)."""

    def __init__(self, on_trip: Callable[[int], None]) -> None:
        self.off = False
        self.trips = 0
        self.errors: list[str] = []
        """The first few errors as text, for a person who looks for the reason."""
        self._on_trip = on_trip
        self.is_armed: Callable[[], bool] = bool
        """Whether silence would be worse than an end: a rank that goes quiet while it is armed passes the
        agreed step alone. Then an error ends the worker."""

    def wrap(self, entry: Callable[..., Any], otherwise: object = None) -> Callable[..., Any]:
        """`entry`, never raising an Exception; `otherwise` is returned when it could not do its work."""
        failures = 0

        def safely(*args: Any) -> Any:
            nonlocal failures
            if self.off or failures >= LIMIT:
                return otherwise
            try:
                return entry(*args)
            except Exception as error:  # noqa: BLE001 – the point of this module
                failures += 1
                self._trip(entry, error)
                return otherwise

        return safely

    def wrap_steering(self, entry: Callable[..., Any], *, outermost: bool = True) -> Callable[..., Any]:
        """As `wrap`, but while this rank is armed an error ends the worker, and nothing is switched off.

        `outermost`: what a signal handler of the script's raised meanwhile is given to the script.
        """
        failures = 0

        def surely(*args: Any) -> Any:
            nonlocal failures
            if self.off or (failures >= LIMIT and not self.is_armed()):
                return None
            try:
                return entry(*args)
            except Interrupted as interrupted:
                if not outermost:
                    raise
                raise interrupted.error from None
            except Exception as error:  # noqa: BLE001 – as above
                failures += 1
                self._trip(entry, error)
                if not self.is_armed():
                    return None
                told = f"{type(error).__name__}: {error}"
            raise Lost(f"torchloom failed in the middle of a change ({told})")

        return surely

    def optimizer_hook(
        self, entry: Callable[[Any, Any], None], is_compiling: Callable[[], bool]
    ) -> Callable[[Any, Any, Any], None]:
        """`entry(optimizer, args)` as a hook for torch.optim that is safe to meet for torch.compile.

        torch breaks the graph in the step() of its own optimizers anyway, so there dynamo may call us between
        graphs. Any other optimizer may have a step() that compiles whole, and so we vanish from it: while
        dynamo traces, the condition below is a constant.
        """
        safely = self.wrap_steering(entry)
        safely._torchdynamo_disable = True  # type: ignore[attr-defined]

        def loom_hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling() and not type(optimizer).__module__.startswith("torch.optim."):
                return
            safely(optimizer, args)

        return loom_hook

    def _trip(self, entry: Callable[..., Any], error: Exception) -> None:
        self.trips += 1
        try:
            if len(self.errors) < 10:
                self.errors.append(
                    f"{getattr(entry, '__qualname__', entry)}: {type(error).__name__}: {error}"
                )
            self._on_trip(self.trips)
        except Exception:  # noqa: BLE001 – an error with a broken __str__, a box that is gone
            return
