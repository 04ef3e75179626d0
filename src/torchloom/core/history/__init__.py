"""What is kept of a job over time, as pictures for people; nothing is decided by it.

series        bounded series: buckets of time that keep mean, lowest and highest, for one lane or a thousand
trace         steps and collectives of all ranks as a trace that Perfetto opens
job_history   one job's: its numbers, logged values and settings, and every rank's own time
trimming      which events of the stream are needed no longer
"""
