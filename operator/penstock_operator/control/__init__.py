"""The control server: reports in, settings out.

Read in this order: `auth` (who may report) and `rate_limit` (how often an address may have a token reviewed),
`report_interval` and `load_monitor` (how often pods report), `settings_cache` (the settings that answers
carry), `metrics_page` (who is shown the metrics, and how often they are made), `recommendation` (what other
scalers ask for), `server` (HTTP around all of it, and health); then the keys of its port: `rotation` (when
they are made and replaced), `pki` (how), `certificates` (the Secret that holds them).
"""
