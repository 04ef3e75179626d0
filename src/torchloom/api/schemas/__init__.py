"""Every body the API takes or gives. They are the contract of clients; no behaviour.

`bodies` has jobs, nodes, devices, checkpoints and access; the others are named after their subject.
"""
