"""The daemon on each host: starts, watches and ends processes, reads black boxes, reports. Decides nothing.

main         the agent's life: assemble, adopt, join, serve, leave
host         what runs here, and the means to act on it; journal: what must survive the agent
commands     effects in, each done once, results out; queries: questions answered
leaving      what an agent does when its host is taken away, as a pod is
ownership    whose the directories in shared memory are; removal of those whose agent was killed
node_name    the right to the node's name; reporting: the way of events to the stream; mail: the ranks' mail
processes/   start, stop, adopt, exits, spawners, rendezvous stores, self-fencing
health/      the health of devices: sources, and what is sent of it
observe/     black boxes, pulses, windows, evidence, kernel facts, devices
logs/        workers' log files        checkpoints/   catalogue, save reports, memory tiers
neighbour/   states in memory, copied to another node and fetched from there
lighthouse/  the lighthouse of each torchft job
injection/   faults on purpose        tasks   background tasks
"""
