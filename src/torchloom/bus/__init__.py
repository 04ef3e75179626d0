"""The bus room: how weaver and agents talk, and where the one stream of events is kept.

protocol      the seam: import this one       memory     the fake, inside one process
nats          the real one, with nats_client, nats_link (one connection that comes back), nats_reader (the
              stream in order), nats_stream (what is stored), nats_lease, pump (messages in order)
nats_package  nats-py, without what it imports for nothing
embedded      a nats-server of our own; nats_binary, nats_config
cluster_nats  this host's server of a cluster; cluster_accounts: who may do what there, nats_jwt: signed
address       where a bus is and who we are on it; keys: users' keys
Nothing is imported here, so that an agent does not pay for what it does not use.
"""
