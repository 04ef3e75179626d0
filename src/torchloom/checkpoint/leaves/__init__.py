"""The kinds of leaves that need more than JSON and a tensor; `state/tree.py` knows the rest and calls these.

arrays     NumPy's arrays and scalars
randoms    generators of Python, NumPy and torch that a script keeps
classes    enums and named tuples, by the place of their class
sharing    tensors that share memory
"""
