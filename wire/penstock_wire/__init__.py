"""All that crosses a process boundary of Penstock: documents, headers, errors, HTTP front and upstream.

Read in this order: `errors` and `headers` (the words), `settings`, `router_settings` and `report` (the
documents), `http` (the two Protocols every data plane stands on) with `h1_front` and `h1_upstream` behind
them, `instances` (the protocol, on `json_slices`), `settings_source` and `reporter` (the two flows of
control), `process` (what every command line shares).
"""
