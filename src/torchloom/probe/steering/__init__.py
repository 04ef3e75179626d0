"""The rank's side of steering, at the step boundary.

assembly       puts the parts below together
control        reads mail, drives the transaction, does what it says, writes answers; mailbox: commands
registers      the rendezvous store, asked so that it can be given up on
changes        carries out what was decided; config, overrides, declared, data_settings: what can be set
places         one value of a param group, and whether the script writes it
replica_steering  changes that all replicas of a torchft job make together
schedulers     torch's schedulers work on the script's own values
annotations    from a Python annotation to a setting
saving         saves and rollbacks through the script's loom.Checkpoint
stopping       ends the script at a boundary
"""
