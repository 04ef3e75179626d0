"""The lighthouse of each torchft job on this host: a process of its own that outlives the agent.

keeper     the agent's side: starts, watches, restarts and adopts lighthouses; opens and closes doors
beacon     the lighthouse itself: doors for managers, quorums
listeners  its connections to workers: news of deaths, changes of settings
share_change  a change of settings for all replicas, as the control service asks for it
records    what a lighthouse must remember across a restart; the control messages
__main__   the process
"""
