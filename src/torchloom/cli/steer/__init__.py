"""Verbs that change a running job: set, config, revert, pause, resume, operations, checkpoint(s), restore.

`outcome` follows an operation to its outcome for all of them.
"""
