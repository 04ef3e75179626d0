"""Where torchloom runs besides one machine: verbs and processes for schedulers.

sbatch        `loom sbatch`: a batch script for Slurm; slurm_script: its text
slurm_nodes   the allocation's nodes and addresses, by scontrol
allocation    inside a Slurm allocation: its bus and control service, and the agent of each node
"""
