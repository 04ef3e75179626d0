"""Fleet records to API bodies. Pure: what is shown is a function of state, telemetry and the time given.

jobs, devices, incidents, steering: by subject; listing: order and pages of a list.
"""
