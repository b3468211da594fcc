"""The flow of control of a data-plane process: settings come down, reports go up.

Read in this order: `documents` (what all documents share), `settings` (for a sidecar), `router_settings` (for
a router) with `traffic_rules` (what of a request decides who gets it), `handwritten` (settings files that a
person wrote), `report` (what goes up), `processor_wait` (what a report says of its node), `settings_source`
(where settings come from), `reporter` (sends reports) and `ca_trust` (which certificate of the operator a
reporter accepts).
"""
