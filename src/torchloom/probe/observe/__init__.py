"""What the probe records of the training, without being asked.

steps, data_wait, phases                  progress of the loop; joining: process groups being made
optimizer_steps                           how many steps a loaded optimizer has made by its own count
metrics, hyperparameters, values          numbers, as JSON that any reader accepts
recorder, fallback_recorder, operators    collectives: native, or in Python; what is known of each operator
batches                                   where a batch of operations begins and ends, for the recorder
import_report                             what the script imported, for the next start of it
parameter_hashes, device, from_device     replicas that should be equal; the device, and its numbers
"""
