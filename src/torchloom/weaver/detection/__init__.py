"""Detection in the weaver: `loop` runs the detectors over the newest windows, `evidence` asks agents.

`kept` holds what is kept of windows between two looks, `baselines` what was learned of a job,
`limits` what the owner of a job set, `lateness` says how long a message was in transit, and
`second_witness` asks torch's Flight Recorder.
"""
