"""The store half: knows no torch and starts no thread; its calls may block on a disk or a network.

names, manifest        keys of everything in the store; what a checkpoint is made of
storage                the seam to the store; local and objects fill it
generations, runs      which life of a job may still add states, and its number in the store
commit, reader         writing all or nothing; finding what to resume from
trainer_index          names what a framework's own trainer saved (Hugging Face, Lightning, accelerate)
verify, catalogue      checksums; list, verify, pin, delete, keep rules, sweep
points, damage         named places where a test kills the process; damage on purpose
"""
