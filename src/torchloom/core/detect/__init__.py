"""Detectors: pure functions from what was observed, and the time, to findings. They never act."""
