"""The settings of a job: which there are, which values hold, and from which step on. Knows no fleet.

settings       types, bounds and names of settings
schedule       from which training step on which values hold
box_codec      both as JSON in the black box
batch_shares   which ranks take fewer samples of a step, as text
overrides      what a change says about a param group's value: hold, scale, own
"""
