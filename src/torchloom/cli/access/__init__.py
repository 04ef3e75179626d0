"""Clusters by name (`context`, kept by `contexts`) and named tokens (`token`)."""
