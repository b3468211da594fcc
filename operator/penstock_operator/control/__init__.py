"""The control server: reports in, settings out.

Read in this order: `reports` (what was reported lately), `auth` (who may report), `server` (HTTP around both,
metrics and health).
"""
