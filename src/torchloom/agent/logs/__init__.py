"""Workers' log files.

`files` marks, reads and bounds them, `times` finds a place by time, `removal` deletes them.
"""
