"""Line-oriented data in many files.

dataset, loader        ShardedDataset and ShardedLoader
index, indexing        which shards, how long, how many lines
deal, cursor, left_out pure: who reads what, how far, and what is skipped
reading, formats       lines by place, wherever the shards are
source, fetch, fetcher, cache    shards from a directory or an object store
"""
