"""Whole parts of Penstock in memory: no socket, no process, time that jumps.

Read in this order: of the data plane `fake_network` (an upstream with pods that misbehave), `slotted_network`
(pods with queues), `router_world` (a router before it), `routed_pods` (routers before real sidecars),
`passing_bench` (what passes without batches), `simulation` (the sidecar's decisions), and the studies
`knob_tables`, `simulated_costs`, `simulated_holding`, `simulated_balance`, `simulated_growth`,
`simulated_fleet`; of the operator `memory_cluster` (a Kubernetes), `operator_harness` (the operator on it),
`operator_peace` (its world at rest), `observed` and `measured_pods` (what it sees), `releases` and
`release_world` (releases), `release_traffic` and the study `simulated_releases` (their verdicts),
`lifecycles` (every stage of a life), `pod_specs` and `router_specs` (random inputs); of the page
`page_world`.
"""
