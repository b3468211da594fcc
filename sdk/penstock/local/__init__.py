"""`penstock run`: the programs of a cluster as child processes on loopback, for a laptop.

Read in this order: `options` (what the command line says), `ending` (no process is left behind, however this
one ends), `terminal` (log lines for people, and the live view), `nodes` (what is served), `child` (a program
and its output), `ports`, `pair` (a model server and its sidecar), `front` (the router before all pairs),
`generation` (a pair for each node), `source_files` (which files changed), `live_view` (queue and batches),
`session` (all of it, from start to Ctrl-C).
"""
