"""Checkpoints in a store: named, checksummed, committed all or nothing, catalogued.

Owns the layout in the store, the commit protocol, the search for the state to resume from, and the catalogue.
Does not know torch: what the files hold, and when to save, is the business of `loom.Checkpoint`. Starts no
thread; every call here may block on a disk or a network and belongs on the caller's background thread. Needs
only the standard library, and obstore for `s3://`, `gs://` and `az://`.

    names        the keys of everything in the store
    manifest     what a checkpoint is made of
    storage      the seam to the store; local.py and objects.py fill it
    generations  which life of the job may still add states, and what each resumed from
    commit       writing: files, parts, manifest; and the argument why this is safe
    reader       finding what to resume from
    verify       checksums, before anything is unpickled
    catalogue    list, verify, pin, delete, keep rules, sweep
    points       named places where a test kills the process
"""
