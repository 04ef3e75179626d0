"""Verbs and processes of the service itself: up, down, upgrade, weaver, agent, notify, demo.

supervisor   starts and restarts the parts; supervised: one of them     stack     does it run and answer
store_watch  when a nats-server that stores nothing is restarted
certificate_watch  when a nats-server is told to read its certificate again
plan         address, token and bus of a home                           parts     pids of what runs
shared_keys  the keys of jobs' environments, for one host or several weavers
early_spawner  begins to import torch for the job of `loom run` before there is an agent
free_core    leaves a core to the import of torch while a weaver starts
launch       starts our processes                                       cleanup   ends them and what they left
part_main    the top level of a part's process; serving: the API on an open socket
own_logs     keeps our own logs small                                   systemd   the unit of `loom up`
upgrade, upgrade_plan    `loom upgrade --check`: which version runs where, and in which order to replace it
"""
