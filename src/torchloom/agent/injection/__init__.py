"""Faults on purpose.

faults   carries out InjectFault     quota   limits a worker's CPU     control_plane   kills our own parts
"""
