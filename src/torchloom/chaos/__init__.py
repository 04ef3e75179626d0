"""Chaos: faults on purpose. Seeded scenarios and a simulator that gives detectors the windows of any job.

simulator      the job: 8 to 4,096 ranks; rank_program: what one does; job_state: what they have recorded
wide_job       windows of a job of any size, made directly
scenario       shape, fault and benign look-alikes of a simulated job
injections     seeded series of faults for a real job
hosts          several hosts on one machine                  clocks  a process's wall clock jumps
device_lives   simulated lives of GPUs, for the prediction of failures
accelerator    a simulated device with a c10d backend, where there is no GPU
Nothing here touches a real job; nothing in the product imports it.
"""
