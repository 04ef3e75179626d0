"""`loom doctor`: what this host has, what torchloom will see of it, and a job that proves it.

doctor     the verb                            check         one line of the report, and the exit code
host       limits, memory, disk, clock, ports  sight         what agents can read: stacks, counters, GPUs
training   torch, its devices, the recorder    torch_facts   what torch says, in a process of its own
self_test  the job and its injected stop       script        the program of that job
brief      what `loom up` says of the host
"""
