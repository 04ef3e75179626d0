"""`loom nodes`: the hosts with an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloom.cli.options import JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import NodeView

EXAMPLES = (("loom nodes", "all hosts, their free slots, and when each was last seen"),)


def command(watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """List nodes: state, workers, and when each node was last seen."""
    from torchloom.cli.show import output

    client = api()
    if watch:
        from torchloom.cli.show import watching

        watching.watch(client.nodes, _table, lines=list if as_json else None)
    elif as_json:
        output.show_json(client.nodes())
    else:
        _table(client.nodes())
        output.show_troubles(client)


def _table(nodes: list[NodeView]) -> None:
    from torchloom.cli.show import output

    output.table(
        ("NODE", "STATE", "ADDRESS", "WORKERS", "SPARE", "DEVICES", "HEARD", "REASON"),
        (
            (
                node["id"],
                "drained" if node["drained"] and node["state"] == "ready" else node["state"],
                node["address"],
                f"{node['workers']}/{node['max_workers']}",
                ", ".join(f"{slots} for {job}" for job, slots in node["spare"].items()) or "–",
                f"{len(node['devices'])}",
                "–" if node["seen_s"] is None else f"{output.seconds(node['seen_s'])} ago",
                node["drained"] or node["reason"] or _dropped(node["dropped_messages"]),
            )
            for node in nodes
        ),
        nothing="no nodes; is an agent running?",
        spare=("ADDRESS", "DEVICES"),
    )


def _dropped(count: int) -> str:
    return f"sends more than its share: {count} messages dropped" if count else ""
