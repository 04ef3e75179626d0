"""From a fault to the next generation.

generation_start    place the ranks, get a rendezvous, start the workers
generation_end      exits, failures and what follows from them, requested stops
culprit             which of several exits was the cause, or what the black boxes of the dead say together
script_failed       the script has failed, its process is still ending
hopeless            what another try cannot mend
taken_over          another run of the same name has taken the checkpoint store over
budget              whether to try again, after which delay; waits for the checkpoint store cost nothing
incidents           how they open, belong together and close; goodput and recovery times
"""
