"""Chaos: faults on purpose. Seeded scenarios and a simulator that gives detectors the windows of any job.

`accelerator` is a simulated device with a c10d backend, for tests, benchmarks and self-checks where there is
no GPU.

What is here never touches a real job; nothing in the product imports it.
"""
