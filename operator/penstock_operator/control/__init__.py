"""The control server: takes reports, answers with settings.

Read in this order: `auth` (who may report) and `rate_limit` (how often an address may have a token reviewed),
`report_interval` and `load_monitor` (how often pods report),
`router_addresses` (whom sidecars may believe), `artifact_turns` (from whom a pod copies its model's files),
`metrics_page` (limits on scrapes, and how often the page is made), `recommendation` (the answers to other
scalers), `server` (HTTP around all of it, and health); then the keys of its port: `rotation` (when they are
made and replaced), `pki` (how), `certificates` (the Secret that holds them).
"""
