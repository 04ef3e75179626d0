"""The spawner: a small process that has imported torch and forks workers from itself.

It runs with the *job's* interpreter, outlives the agent, and needs nothing but the standard library (torch if
it is there). It decides nothing: it starts what is requested, keeps a c10d store alive on request, and
reports exits. `client`, `launch` and `key` (which jobs may share a spawner) are for the agent; `server`,
`children`, `reserves`, `warm`, `learned_imports`, `child`, `boxes`, `log_files`, `refusal` and `store` run
inside; `unix_socket` is for both. `early_library`, `import_shortcuts` and `compiled_texts` make warming
faster; `build_beside` has the native recorder compiled where there is none. docs/spawn.md: how a worker
differs from a fresh process.
"""
