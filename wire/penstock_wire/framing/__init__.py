"""What connections share on which many requests are under way at once, as frames: `hop` and `http2`.

Read in this order: `connection` (one write per turn of the event loop; frames are taken as they arrive),
`bodies` (sent and read piece by piece, as credit allows), `served` (such a connection among those of its
front); then a client's end: `call`, `client` and `starting`.
"""
