"""From a fault to the next generation.

generation_start    place the ranks, get a rendezvous, start the workers
generation_end      exits, failures and what follows from them, requested stops
culprit             which of several exits was the cause, or what the black boxes of the dead say together
script_failed       the script has failed, its process is still ending
hopeless            what another try cannot mend
budget              whether to try again, after which delay; what costs nothing, what ends a run at once
incidents           how they open, belong together and close; goodput and recovery times
"""
