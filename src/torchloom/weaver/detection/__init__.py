"""Detection in the weaver: `loop` runs the detectors over the newest windows, `evidence` asks agents,

`baselines` keeps what was learned of a job, `lateness` says how long a message was in transit."""
