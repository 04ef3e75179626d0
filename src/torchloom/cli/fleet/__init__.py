"""Verbs about the fleet: incidents, replay, stragglers, links (probe), events, devices, device, nodes, trace,
inject; emptying: waits for the jobs of what is drained;
analyze and dump_files: Flight Recorder dumps; report: a job as one HTML file;
tensorboard and otlp: numbers, incidents and operations for other systems."""
