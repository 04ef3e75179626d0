"""The lighthouse of each torchft job on this host: a process of its own that outlives the agent.

keeper     the agent's side: starts, watches, restarts and adopts lighthouses; opens and closes doors
move_lighthouse  another node has the lighthouse from now on
beacon     the lighthouse itself: doors for managers, quorums
gate       where the lighthouse serves nodes that relay to it; relay: what runs on such a node
tunnel     the encrypted connection between them
link_watch has the links between the nodes checked when steps fail; link_checks: one check
report_links  what the agent reports of it
control_socket  the agents' requests, to either of them
listeners  its connections to workers: news of deaths, changes of settings
share_change  what the control service asks for: a change for all replicas, or to leave one of them out
records    what a lighthouse must remember across a restart; the control messages
__main__   the process
"""
