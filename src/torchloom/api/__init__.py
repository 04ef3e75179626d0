"""The HTTP API: what people and programs can read about the fleet, and the few requests they can make.

app            puts it together; routes/, schemas/, views/: by subject     ports     what it needs
access_guard   who may speak to it; roles, tokens, sessions, codes         connections   how many, how long
submission, defaults     a POST /jobs as a job's specification             problems  errors as problem+json
log_stream, sse          streams that resume; log_order: by time           page      the built page
find, since, once        ids, points in time, idempotency keys             openapi   the description
"""
