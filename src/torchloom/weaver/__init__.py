"""The control service: receive events, let the core choose, perform what it chose.

service      the loop, and what the API asks for; owns the parts below
publisher    the fleet as applied so far, and publishing events: every part is given this
dispatch     sends effects to agents and repeats them        feed        the newest notices
requests/    what people ask for, checked and said            detection/  detectors over the agents' windows
live_view, knowledge     what telemetry shows                 history     a job's numbers over time
leading      the lease, and what keeps it from being held    dropping    drops history behind snapshots
quotas       what one agent may send                         replays     an incident, event by event
doors        stops an agent that floods the stream           monitors    reads reports of health
hearing      whether it hears in time itself
presence     which weavers there are, of which version       own_copy    whether this host's server stores
snapshot, clock, alarms, environments, job_keys    mechanics  trouble     what keeps it from acting
"""
