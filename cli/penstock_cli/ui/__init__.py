"""The page of `kubectl penstock ui`: what runs, what waits, what changes, and why.

`store` follows the cluster's resources by watches; `scrapes` reads the metrics of pods through the API
server; `shared` finds the routers that namespaces share; `views` makes of these what a view of the page
shows (pure); `server` answers the page (`penstock_wire.page`), and does what the user asks for, by the
user's own rights.
"""
