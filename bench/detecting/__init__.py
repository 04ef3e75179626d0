"""The parts of bench/detect.py: which faults are injected, what is reported, and the tables."""
