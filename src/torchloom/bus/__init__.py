"""The bus room: how weaver and agents talk, and where the one stream of events is kept.

Import from `bus.protocol` (the seam), `bus.memory` (the fake), `bus.nats` (the real one) or `bus.embedded`
(a nats-server of our own). Nothing is imported here, so that an agent does not pay for what it does not use.
"""
