"""Which node holds which ranks, and how that changes.

place      ranks to nodes, and how many workers when there is no room for all
standby    spare places
lighthouses  on which node the lighthouse of a torchft job is
neighbours which node keeps copies of another node's states in memory
resize     a person wants more or fewer workers
drain      jobs leave a node
relocate   a policy moves a job away from a bad rank's node
"""
