"""Verbs about the fleet: incidents, replay, stragglers, links (probe), events, devices, device, superbench,
nodes, trace, inject; emptying: waits for the jobs of what is drained; device_test: follows a test;
analyze and dump_files: Flight Recorder dumps; report: a job as one HTML file;
tensorboard and otlp: numbers, incidents and operations for other systems."""
