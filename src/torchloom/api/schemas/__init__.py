"""Every body the API takes or gives. They are the contract of clients; no behaviour.

`bodies` has jobs, nodes, checkpoints and access; devices, incidents, joining, links, policy and steering have
their own.
"""
