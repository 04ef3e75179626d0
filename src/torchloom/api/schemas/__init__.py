"""Every body the API takes or gives. They are the contract of clients; no behaviour.

`bodies` has jobs, nodes, devices, checkpoints and access; incidents, links, policy and steering their own.
"""
