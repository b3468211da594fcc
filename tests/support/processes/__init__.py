"""The real programs on loopback, and servers in the place of what they talk to.

Read in this order: `ports`; of the data plane `sidecar_process` (a sidecar and its model), `patient_sidecar`
and `hanging_sidecar` (sidecars with a hook), `protocol_pair`, `router_process`, `patient_router` and
`stalling_router` (the same for routers), `router_sidecar`, `composed` (all together), `rendered` (as the
operator writes them), `handle_calls`, `penstock_run`, `foreign_servers`; around the operator `tiny_apiserver`
and `fake_apiserver`, `control_server`, `operator_process`, `terminal`; and `collector`, `browser`,
`web_page`, `s3_server`, `slow_bucket`, `artifact_step`, `artifact_pods`, `tiny_wheel`.
"""
