"""`penstock run`: the programs of a cluster as child processes on loopback, for a laptop.

Read in this order: `options` (the command line), `ending` (leaves no process behind, however this one ends),
`terminal` (log lines for people, and the live view), `nodes` (the nodes to serve), `child` (a program and its
output), `ports`, `pair` (a model server and its sidecar), `front` (the router before all pairs),
`generation` (a pair for each node), `source_files` (detects changed files), `live_view` (queue and batches),
`page` (the same in a browser), `session` (the whole command, from start to Ctrl-C).
"""
