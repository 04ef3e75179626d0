"""Verbs that make a cluster of several hosts, and the files those hosts keep in LOOM_HOME/cluster.

cluster      `loom cluster`: what the control hosts need          ca     `loom ca`: certificates
issuer       signs for hosts that join, and revokes them
join         `loom join`: makes this host a node                  authority   signs certificates
hidden_argument   a token is not left in the list of processes
derived      keys that follow from a shared secret (the chart)    pod_join    a pod joins by its own token
host_files   what a control host has      node_files   what a joined host has      fetching   CA and claims
"""
