"""A package run with -m: relative imports work."""
