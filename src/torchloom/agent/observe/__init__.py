"""Observes workers from outside. Reports facts, makes no judgement.

boxes         black boxes: map, read, write to the mailbox; guarded: a bad one costs nobody else;
              words: what one says, for people
pulse         regular looks: first steps, devices, telemetry
windows       what detectors look at, twice a second; collectives: records of the ring; logged: metrics
stopped_replicas  workers of torchft replicas that are stopped
another_program  whether a process has executed another program
quiet_tree    signs of life of a worker that records nothing, and of its children
evidence      stacks, collectives and samples on request; stacks: py-spy
kernel        state, CPU time, I/O, children of a process; cgroups: quotas; kernel_files: how both are read
kernel_log    errors of the device driver in the kernel's log
kernel_waits  what a blocked process waits for, and who debugs it; file_locks: who holds a lock on a file
accelerator   the device a rank's collectives run on: where it stands, its own steps
devices       devices of this host, and which worker uses which; sockets: its NUMA nodes
flight_recorder  torch's own recorder: how workers are started with it, and asking it
"""
