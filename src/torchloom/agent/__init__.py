"""The agent: one per host, it acts and holds no opinion.

`main.serve` wires the rooms; `commands` receives, `start` and `stop` do, `watch` sees processes end, `pulse`
tells how they are, `report` carries events to the stream. Neither torch nor the web stack is imported here.
"""
