"""Checkpoints: a training's state, saved beside the loop, committed all or nothing, catalogued, restored.

    checkpoint     `loom.Checkpoint`: save and restore a training with three lines
    store/         the store half: keys, manifests, commit, generations, catalogue (no torch, no thread)
    state/         a state as bytes and back: trees, images, staging, filling
    native/        the copy of a save, compiled
    leaves/        kinds of leaves: arrays, generators, enums, views
    saving/        which steps are saved, and writing them beside the training
    memory/        the newest states in shared memory
    restoring/     which state to resume from, and giving it back; live rollback
    group          who this process is among the ranks, and how ranks agree
    lineage        what a manifest says of a state besides its files
    live           the checkpoints in use, for the probe to find
    reporting, report_text    what a worker reports of its checkpoints

Only `store/`, `memory/tier`, `memory/header` and the report need no torch. obstore is needed for
 `s3://`, `gs://` and `az://`.
"""
