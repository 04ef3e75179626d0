"""What the benchmarks share: launchers, the notes of the workload, and the printing of results."""
