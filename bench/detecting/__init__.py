"""The parts of bench/detect.py: what is done to jobs, what is told about it, and the tables."""
