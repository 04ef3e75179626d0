"""What runs inside the user's training process: no thread, no socket, only the standard library and torch.

worker       the process's main: box, probe, program, end record      launch   the same after an exec
program      runs the script as `python script.py` would              streams  its stdout and stderr
box          maps the black box; end_record: how the script ended      guard    nothing of ours raises
session      one probe in one process: makes the watchers and connects them
training_count    which training step this is
import_watch a module (torch…) has been imported                      api      behind `import torchloom`
observe/     steps, phases, data waits, metrics, collectives, devices, hashes
steering/    mail, transaction, settings and saves at the step boundary
links/       the delay matrix                                         native/  the recorder in C++
injected_faults   faults on purpose                               frameworks   joins Hugging Face, Lightning…
agent_store  the job's store is at the job's port only: groups of the script's own (mp.spawn) get theirs
"""
