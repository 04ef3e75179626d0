"""The settings of a job: which there are, which values hold, and from which step on. Knows no fleet.

settings       types, bounds and names of settings; settings_codec: their JSON
schedule       from which training step on which values hold; schedule_codec: its JSON
overrides      what a change says about a param group's value: hold, scale, own
"""
