"""Renders resources as Kubernetes objects, plain dicts. Pure: no clock, no client, no random numbers.

Read in this order: `names` and `labels` (the words), `config` (what the installation decides), `objects`
(metadata and hashes of all objects), `backend` (all objects of one ModelBackend, from `pods`, `sidecar`,
`code` and `artifact` (what is not in an image), `model_format` (a class and an image of ours), `deployment`,
`template_pinning` (how long a pod template stays), `service`, `settings`, `disruption`, `networkpolicy`),
`shares` (a split's current weights), `traffic` (the backends of each endpoint), `ports`, `router` (all
objects of one namespace's router), `tenant_settings` (what routers that namespaces share get), `drift`
(whether a live object is as desired).
"""
