"""Checkpoints: a training's state, saved beside the loop, committed all or nothing, catalogued, restored.

Two halves. The *store* half knows no torch and starts no thread; its calls may block on a disk or a network.
It needs only the standard library, and obstore for `s3://`, `gs://` and `az://`:

    names        the keys of everything in the store
    manifest     what a checkpoint is made of
    storage      the seam to the store; local.py and objects.py fill it
    generations  which life of the job may still add states, its branches, and what each resumed from
    runs         the number of a life in a store that earlier submissions of the job have used
    commit       writing: files, parts, manifest; and the argument why this is safe
    reader       one listing, and finding what to resume from
    verify       checksums, before anything of a file is used
    catalogue    list, verify, pin, delete, keep rules, sweep
    points       named places where a test kills the process
    tier         where the memory tier is on a host
    live         the checkpoints in use, for the probe to find
    told         what a worker tells of its checkpoints; telling.py says to whom

The *training* half is `loom.Checkpoint` (checkpoint.py) and needs torch:

    state        the parts of a training and what ranks have in common; rng.py, buckets.py
    tree, image  a state as JSON and raw tensors in one run of bytes
    region       memory that is kept
    staging      the one copy that the loop waits for
    memory       the memory tier; hostline.py is what a host knows of the line of descent
    agenda       which steps are saved; interval.py, counting.py
    writer       the thread that writes to the store
    deciding     what to resume from, also when the store is away; choosing.py
    loading      from memory or store to images
    filling      from images to live objects
    restore      the order of a restore
    rollback     going back while the training runs
"""
