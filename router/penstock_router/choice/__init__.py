"""Chooses the endpoint of a path, and the backend and the pod of a request.

Read in this order: `routes` (the front door's table), `load_balancing` (shares by weight, the better of two
pods), `match_rules` (by what the request says itself), `affinity` (by a key) and `steering` (rules and keys
of one endpoint together).
"""
