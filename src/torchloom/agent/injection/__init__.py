"""Faults on purpose.

faults   carries out InjectFault     quota   limits a worker's CPU     parts   kills our own parts
"""
