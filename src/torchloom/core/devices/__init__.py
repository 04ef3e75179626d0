"""Devices: which exist, which are out of use, and what happens to the jobs on one that fails. Pure.

registry         the list, kept in line with what agents report
users            who uses a device
assignment       chooses a device for each new worker
marks, preview   takes a device out of use and returns it; what that would do
wear, hazard      what is counted on a device over days, and how likely it is to fail
at_risk           acts on that, as the policy says
testing           tests of a device; standing: a measurement among those of others
superbench        reads SuperBench's files
health_class     measurements to a class of health; exposition: reads what exporters publish
explain          whether the health of its device explains a slow rank
reported_health  takes in what sources conclude; health_policy: what is done about it
"""
