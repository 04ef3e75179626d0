"""Verbs of a job's life: run, submit, ps, status, logs, wait, stop, restart, scale, delete, purge. Shared:

flags     torchrun's flags and ours      request   from a command line to the body of POST /jobs
forwarding  which variables of the shell a job gets
first_build  the native recorder, before the first job of an installation
replicas  `--replicas N`: one torchft job as one job for each replica
policy    policy files                   follow    a job to its end: logs, state, incidents, Ctrl-C
"""
