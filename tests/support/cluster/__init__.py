"""What tests on a real Kubernetes share.

Read in this order: `cluster_waits` (for a state), `reader` (of objects), `k8s` (a namespace with the usual
verbs), `release` (the release that all tests share), `circumstances` (what a failed test leaves to read),
`watched` (a backend's states), `ui` (the page), `gated_model`, `tls_app` (what the apiserver calls:
`external_metrics`, `late_webhook`), `injected_app` (a Deployment of somebody else), `settings_watch`,
`fault_proxy` (a bad network before the apiserver), `changing_user` (random changes), `cluster_traces` (what
a cluster leaves on the machine).
"""
