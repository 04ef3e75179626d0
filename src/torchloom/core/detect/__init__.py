"""Detectors: pure functions from what was observed, and the time, to findings. They never act.

judge        runs all detectors in their order, and keeps what must be remembered between two looks
hang, graph, joining, devices     ranks that others wait for; certainty: whether they will never arrive;
                                  members: of a group, without a window of each
stalls                            operations that all have entered and not all have finished
desync, counts, unlike, skipped   ranks whose collectives do not fit together
joined                            several culprits of one kind, as one finding
slow, attribute, why_late         who is slow and why; stages: uneven pipelines; transfers: which are slow;
                                  cost: what it costs; own_times: what a rank took for itself
                                  wide: the rules of slow over arrays, for hundreds of ranks; uneven,
                                  bursts: slow now and then; turns: a few in turn
matrix, tournament                the delay matrix, and who meets whom to measure it
slow_replicas                     a replica of a torchft job that the others wait for
numerics, replicas                NaN, spikes, replicas that differ; watched_metrics: which metrics count
failed                            collectives that ended with an error in a job that continues
crash, silence, still             processes that are gone, silent nodes, jobs in which nothing moves
board, kept_steps, comparable     all windows with columns for rules; who may be compared with whom
wide_board, wide_steps            the same of arrays, for hundreds of ranks and more
window_blocks, window_numbers     windows as blocks of numbers: what agents send
window, encoding, thresholds, robust, words     windows, learned limits, statistics, pieces of sentences
"""
