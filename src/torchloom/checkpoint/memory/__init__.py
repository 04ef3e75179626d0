"""The memory tier: the newest states in shared memory.

slots      keeps them; header: the layout of a slot's first bytes; tier: where the files are
hostline   what a host knows of the line of descent
arriving   states that the agent brings from other nodes while the ranks start
copying    which of them are copied to a neighbour, as the ranks agree (the agents copy)
"""
