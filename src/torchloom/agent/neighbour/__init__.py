"""States in memory, copied to a neighbour's memory and fetched from there. The core chooses the neighbour.

channel        an encrypted connection between two agents of one job
plans          what was ordered for each job on this host, kept beside its states
slot_transfer  slot files, sent and received whole or not at all
door           takes copies from other agents, and gives states to them
copy_process   where copies are sent and taken, at a low priority
sending        sends one state to a neighbour
copier         sends what this host's ranks ask for, beside the training
preparing      when ranks start here: has what is missing brought here meanwhile
fetching       gets the states of these ranks
gathering      after a change of the number of ranks: one state of all of them
"""
