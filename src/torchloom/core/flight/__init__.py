"""torch's Flight Recorder as a second witness: its dumps to records, and what they show of a hang.

dump      one rank's dump as records, from plain data that nobody has checked
windows   the same as a window, which detectors can read
analysis  all ranks' windows to one verdict, a line for each rank, and what does not match
agreement whether that verdict agrees with what a detector found
"""
