"""Encodings shared by the parts: the codec, the subjects, the black-box layout. Imports nothing by itself."""
