"""Verbs about the fleet: incidents, replay, stragglers, links (probe), events, devices, device, nodes, trace,
inject;
analyze and dump_files: Flight Recorder dumps; report: a job as one HTML file;
tensorboard and otlp: numbers, incidents and operations for other systems."""
