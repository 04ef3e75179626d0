"""Detection in the weaver: `loop` runs the detectors over the newest windows, `evidence` asks agents.

`watched_job` holds what is known of one job, `kept` what stays of ranks that have ended, `baselines` what
was learned of a job for the next weaver, `limits` what the owner of a job set, `lateness` says how long a
message was in transit, and `second_witness` asks torch's Flight Recorder.
"""
