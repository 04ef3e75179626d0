"""Nodes and the weavers that judge them.

membership   nodes come, fall silent, come back
name_owner   who owns a node's name
lost_nodes   unreachable nodes, and hosts a person declared gone
event_shares how many events an agent may append    floods   the incident when it appends more
report_pace  how often agents report: less often in a very large fleet
admission    which hosts may join: tokens, admitted and revoked keys
replica_links  replicas of a torchft job that reach their lighthouse, but not each other
speaking     whose events count: an agent's about its own node, the judgement of the weaver that leads
"""
