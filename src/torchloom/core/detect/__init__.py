"""Detectors: pure functions from what was observed, and the time, to findings. They never act.

judge        runs all detectors in their order, and keeps what must be remembered between two looks
hang, graph, joining, devices     ranks that others wait for; certainty: whether they will never arrive
desync, counts, unlike, skipped   ranks whose collectives do not fit together
joined                            several culprits of one kind, as one finding
slow, attribute, why_late         who is slow and why; stages: uneven pipelines; transfers: which are slow;
                                  cost: what it costs; own_times: what a rank took for itself
                                  wide: the rules of slow over arrays, for hundreds of ranks; uneven: slow
                                  now and then
matrix, tournament                the delay matrix, and who meets whom to measure it
numerics, replicas                NaN, spikes, replicas that differ; watched_metrics: which metrics count
crash, silence, still             processes that are gone, silent nodes, jobs in which nothing moves
window, encoding, thresholds, robust, words     windows, learned limits, statistics, pieces of sentences
"""
