"""Workers and what they need, as processes.

start, stop, adopt     carry out StartWorkers and StopWorkers; find what an earlier agent left
left_behind            ends what a worker started in a session of its own
exits                  sees workers and stores end; script_failures: a script failed, its process still ends
process                who a pid really is, whether it lives, signals
recipe                 which spawner a job needs
spawners               find, start, keep, replace spawners; spawner_files: their sockets and locks
learned_spawners       spawners that have imported what a job was seen to import
reserve_processes        has spawners fork the next workers and the next store of a job ahead of need
worker_environment     the environment and start order of a worker
interfaces             which network interface collectives use
rendezvous             the c10d store of a generation; warm_standby: a spawner ahead of need
fencing                ends workers when this host has lost the control plane
"""
