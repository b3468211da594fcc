"""The flow of control of a data-plane process: settings come down, reports go up.

Read in this order: `documents` (what all documents share), `artifact` (a model's files), `settings` (for a
sidecar), `router_settings` (for a router) with `traffic_rules` (rules that choose a request's backend),
`handwritten` (settings files that a user wrote), `report` (what goes up), `processor_wait` (a report's
measure of its node), `settings_source` (reads settings from their sources), `reporter` (sends reports) and
`ca_trust` (which authorities a reporter trusts to sign the operator's certificate).
"""
