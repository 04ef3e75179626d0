"""Encodings shared by the parts: the codec, the subjects, the black-box layout, the line that starts a log.

Imports nothing by itself.
"""
