"""`loom otlp`: incidents, operations and metrics to an OpenTelemetry collector."""

from __future__ import annotations

from typing import Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import api

EXAMPLES = (
    ("loom otlp http://collector:4318", "until Ctrl-C; headers: OTEL_EXPORTER_OTLP_HEADERS"),
    ("loom otlp http://collector:4318 --once", "what is there now, then end"),
)


def command(
    endpoint: Annotated[str, argument(help="Base address of the collector (OTLP over HTTP).")],
    every: Annotated[str, option("--every", metavar="TIME", help="Between two exports.")] = "15s",
    once: Annotated[bool, option("--once", help="Export what is there now, and end.")] = False,
) -> None:
    """Export incidents and operations as traces, and metrics, over OTLP (extra `otel`)."""
    import sys
    import time

    from torchloom.client import NotAnswering, Unavailable
    from torchloom.durations import parse_span
    from torchloom.errors import TimedOut, UsageError

    try:
        from torchloom.export.otlp import Exporter
    except ImportError as error:
        raise UsageError("OpenTelemetry is not installed", hint="pip install 'torchloom[otel]'") from error
    every_s = parse_span(every, "--every")
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"{endpoint} is no address: use http://HOST:4318.")
    exporter, client = Exporter(endpoint), api()
    while True:
        try:
            sent = exporter.export(client)
            if once and not sent.failed:
                print(f"{sent.spans} spans and {sent.points} values exported")
            failed = sent.failed
        except (NotAnswering, Unavailable) as error:
            if once:
                raise
            failed = error.message
            client.close()
        if once and failed:
            raise TimedOut(f"{failed}.")
        if once:
            return
        if failed:
            print(f"loom: {failed}; the next try is in {every_s:g} s", file=sys.stderr, flush=True)
        time.sleep(every_s)
