"""`loom nodes`: the hosts with an agent."""

from __future__ import annotations

from torchloom.cli.options import HomeOption, JsonOption, api


def command(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List nodes with state, workers and the last sign of life."""
    from torchloom.cli import output

    nodes = api(home).get("/nodes")
    if as_json:
        output.show_json(nodes)
        return
    output.table(
        ("NODE", "STATE", "ADDRESS", "WORKERS", "DEVICES", "HEARD", "REASON"),
        (
            (
                node["id"],
                node["state"],
                node["address"],
                f"{node['workers']}/{node['max_workers']}",
                f"{len(node['devices'])}",
                "–" if node["seen_s"] is None else f"{output.seconds(node['seen_s'])} ago",
                node["reason"],
            )
            for node in nodes
        ),
        nothing="no nodes; is an agent running?",
    )
