"""Records that the parts exchange and the core keeps. No behaviour beyond validation, no I/O.

fleet           the state of everything; ids: how things are named
events, effects, timers     what happened, what the core wants done, what it wants to be woken for
messages, notice            commands, queries and telemetry; an event as people follow it
replayed                    an incident replayed, event by event
job, policy, steering, transaction/     what a user asks for: the job, what is done about findings, changes
node, worker, links, checkpoints        facts about a host, a process, the network, what was saved
admission                               which hosts may join a cluster
devices                                 devices, their health, and who took them out of use
device_wear                             what was counted on a device over days, tests of it, and its risk
windows, findings, finding_kinds        what detectors look at and conclude; the table of kinds
incidents, faults, device_faults        what went wrong, and what was made to go wrong
neighbours                              which node keeps copies of which states in memory
quorum                                  a replica of a torchft job, and what it asks its lighthouse for
flight                                  dumps of torch's Flight Recorder
"""
