"""Encodings shared by the parts. Imports nothing by itself.

codec          bytes to records and back            subjects      names on the bus
blackbox       the layout of a black box            start_line    the line that begins a process in a log
object_store   variables that lead into an object store
store_values   values in the c10d store             plain_pickle  pickles of plain data, not unpickled
flight_dump    a dump of the Flight Recorder         torchft_messages   between managers and a lighthouse
schema_versions    every schema with its number, and what a reader does with a newer one
"""
