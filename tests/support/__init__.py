"""What tests share, by what it stands in for; each folder's first page gives the order in which to read it.

`clocks` (time that a test turns, and waits for states), `models` (in a model's place), `http` (raw peers,
real clients' heads and the rules of HTTP), `worlds` (sidecars, routers and operators in memory, without a
socket), `processes` (the real programs on loopback), `cluster` (a real Kubernetes), `ledger` (load whose
every request is accounted for), `pages` (docs, chart and examples as data).
"""
