"""The control server: reports in, settings out.

Read in this order: `reports` (what was reported lately), `auth` (who may report), `pace` and `pacer` (how
often), `server` (HTTP around all of it, metrics and health); then the keys of its port: `rotation` (when they
are made and replaced), `pki` (how), `certificates` (the Secret that holds them).
"""
