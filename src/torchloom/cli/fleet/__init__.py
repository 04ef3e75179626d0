"""Verbs about the fleet: incidents, stragglers, links (probe), events, devices, nodes; trace and inject;
analyze and dump_files: Flight Recorder dumps; report: a job as one HTML file;
tensorboard and otlp: numbers, incidents and operations for other systems."""
