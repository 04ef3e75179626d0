"""What runs inside the user's training process: no thread, no socket, only the standard library and torch.

worker     the process's main: box, probe, program, end record          launch   the same after an exec
program    runs the script as `python script.py` would                  box      maps the black box
session    one probe in one process; ties the watchers below together   guard    nothing of ours raises
arrivals   tells when a module (torch…) has been imported               phases   what the worker is at
steps      optimizer steps and the boundary                             mailbox  commands at the boundary
data       time spent waiting for data loaders                          values   script values as JSON
hyper      hyperparameters of the optimizers                            metrics  what loom.log was told
device     which device this is                                         ending   the end record
recorder, fallback, native   collectives                                api      behind `import torchloom`
control    steering at the boundary: mail, store, answers                registers  the ranks' store
changes    what is decided, carried out: config, checkpoints             stopping   ends at a boundary
config     what holds, and the schedule it follows                      overrides  values over param groups
declared, annotations, data_settings   what the script offers         answers    their place in the box
"""
