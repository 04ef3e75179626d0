"""What leaves the control plane for other systems. Each exporter is a client of the API in its own process,
so that a slow or dead receiver costs neither a decision nor a training step.

* `webhooks`: the private file that names receivers, and the messages they get.
* `delivery`: one signed request, and when to try again.
* `notify`: follows incidents and delivers them in order, also over restarts.
* `events_file`: a writer of TensorBoard event files.
* `tensorboard`: a job's numbers as such a file.
* `telemetry`: incidents, operations and metrics in OpenTelemetry's form (extra `otel`).
* `otlp`: sends those to a collector.
* `prometheus_text`: reads what `/metrics` answers.
"""
