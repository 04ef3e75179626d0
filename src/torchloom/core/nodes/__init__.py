"""Nodes and the weavers that judge them.

membership   nodes come, fall silent, come back
joining      who owns a node's name
lost_nodes   unreachable nodes, and hosts a person declared gone
speaking     an agent reports only about its own node
leading      only the leading weaver's judgement counts
clocks       agents' wall clocks in the time of the stream
"""
