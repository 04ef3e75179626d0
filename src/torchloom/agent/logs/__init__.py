"""Workers' log files.

`files` marks, reads and bounds them, `times` finds a place by time and the time of a place, `watch` notes
when they grow, `placing` puts them where a job wants them, `removal` deletes them.
"""
