"""Looks after the health of this host's devices. Only the agent does this, never a worker.

health_source   what a source is, and how one is found
nvml, dcgm_scrape, file_drop, host_load, slurm: one source each
source_process  a process of its own for a source that may hang; isolation: the agent's end of it
health_watch    runs all sources, sends measurements as telemetry and changes of class as events
wear_reports    what was counted on devices over hours, for the prediction of failures
device_tests    tests a device on request, in a process of its own (child_run)
superbench_exec the same with SuperBench, where it is installed
known_gpus      the GPUs of this host, also while NVML does not answer
"""
