"""A training's state as bytes, and back.

training_parts         what is saved, and what ranks have in common; rng, buckets
tree, decoding, image  a state as JSON and raw tensors in one run of bytes, and back; kinds: ../leaves
region, fresh_pages    memory that is kept, made beside the training
staging, moving        the one copy the loop waits for
planning               what is kept of a plan from save to save
filling, streaming     from images to live objects, compared on the way; crc, threads, resharding
new_memory             memory of tensors that were not there
readback               whether the script's objects hold what was saved
"""
