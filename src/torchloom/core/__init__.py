"""Pure decisions: events and the time go in, effects with reasons come out. No I/O, no clock.

reducer      apply one event to the fleet; the table of which module handles which event
turn         one turn: the event, its time, and the effects it leads to
stream_time  time that never goes back, and the clocks of hosts converted to it
lifecycle    which state of a job or worker may follow which
recovery/    how a generation starts and ends, who failed, budgets, incidents, goodput
placement/   which node holds which ranks; sizes, standby, drains, moves
devices/     the list of devices, their health, and what follows when one fails
nodes/       nodes join, fall silent, are lost; who leads
steering/    operations on a running job
config/      its settings, and the schedule by which they hold
transaction/ one change, all ranks, one step: the protocol
policy/      what is done about a finding, and when it is reported
detect/      detectors: windows and the time to findings
device_faults/ crashes of devices by class, Xid codes, who is to blame
flight/      dumps of torch's Flight Recorder: what they show of a hang
history/     what is kept of a job over time
changes      what an event changed; notices puts it into words
replaying    recorded events applied again, and each of them explained
scattered    whether any of many workers is as asked
quorum       which replicas of a torchft job train together
broken_links which of them are left out because they cannot reach each other
replica_changes  the step at which all of them apply a change of settings
disturbance  incidents of the control plane itself
foreign_values  an incident about what others wrote into a job's store
jobs, checkpoint_reports, retention, injection, invariants: one subject each
"""
