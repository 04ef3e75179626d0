"""Verbs that look at everything: incidents, stragglers, links (probe), events, devices, nodes; and inject."""
