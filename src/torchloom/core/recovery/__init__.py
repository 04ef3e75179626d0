"""From a fault to the next generation.

generation_start    place the ranks, get a rendezvous, start the workers
generation_end      exits, failures and what follows from them, requested stops
culprit             which of several exits was the cause; post_mortem: what the dead black boxes say together
lost_peers          a closed connection and an unreachable node are one fault
script_failed       the script has failed, its process is still ending
store_unreachable   the checkpoint store cannot be reached when a generation wants to restore
budget              whether to try again, and after which delay
incidents           open incidents, what they keep, how they close; goodput: figures derived from them
"""
