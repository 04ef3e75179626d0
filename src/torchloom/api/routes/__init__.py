"""Routes, one file per subject: look up, call a port, return a schema. The guard decides who may call.

jobs, scaling, logs, series                 a job           access      tokens and sign-in
config, operations, checkpoints, faults     steering it     prometheus  GET /metrics
fleet, joining, devices, events, links, stragglers   the fleet   replay      an incident, event by event
versions                                    which version runs where
"""
