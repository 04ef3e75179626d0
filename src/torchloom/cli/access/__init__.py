"""Clusters by name (`context`, kept by `contexts`), named tokens (`token`), a link to the page (`open`)."""
