"""The workload that `loom demo` and a job without a program run. Reads top to bottom."""
