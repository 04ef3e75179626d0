"""Where torchloom runs besides one machine: verbs and processes for schedulers.

sbatch        `loom sbatch`: a batch script for Slurm; slurm_script: its text
slurm_nodes   the allocation's nodes and addresses, by scontrol
pod           `loom pod`: what a training pod runs; trainer_status: its progress for Kubeflow Trainer
kubernetes    `loom kubernetes`: reports pods that are gone and cordoned hosts; pods: which those are
pod_review    whose token a pod presents, by a TokenReview
kube_api      the calls that this makes to the Kubernetes API
slurm_watch   gives up nodes of an allocation that are silent and DOWN
allocation    inside a Slurm allocation: its bus and control service, and the agent of each node
"""
