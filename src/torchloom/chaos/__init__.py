"""Chaos: faults on purpose. Seeded scenarios and a simulator that gives detectors the windows of any job.

What is here never touches a real job; nothing in the product imports it.
"""
