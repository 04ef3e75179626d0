"""What people ask of the weaver through the API: checked with live knowledge, then appended as an event.

steering, scaling, nodes, devices, injection    one subject each
admission                              hosts that join a cluster
checkpoints                            questions to agents about a job's checkpoints
worker_reads                           questions to agents about a worker's log and black box
fitting                                whether a submitted job may be accepted
notes                                  what a person should know about a change
position                               the present progress of a job
"""
