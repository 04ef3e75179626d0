"""Records of a transaction: what is said, asked for and known. The rules are in core.transaction.

Plain dataclasses of the standard library, because the probe reads and writes them too.
"""
