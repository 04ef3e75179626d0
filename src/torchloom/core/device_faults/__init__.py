"""Crashes of devices by class: what the text of an error or the driver's code means, and who is to blame.

texts           the table of error texts of CUDA, ROCm, NCCL, gloo and torch
out_of_memory   out of memory: whose, how much, what else was on the device
xids            the table of NVIDIA's Xid codes, and the reader of the kernel's lines
classify        one exit to one class: the driver's word first where it blames the hardware
"""
