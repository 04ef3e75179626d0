"""The memory tier: the newest states in shared memory.

`slots` keeps them, `tier` says where they are, `hostline` what a host knows of the line of descent.
"""
