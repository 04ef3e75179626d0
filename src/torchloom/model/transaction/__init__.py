"""Records of a transaction: what is said, asked for and known. The rules are in core.transaction.

messages    between weavers and ranks           operation   one change and its outcome
state       what the weaver knows               config      the versions of a job's settings
Plain dataclasses of the standard library, because the probe reads and writes them too.
"""
