"""The page in a browser that `kubectl penstock ui` and `penstock run` share.

`door` lets a browser in, `measures` makes of metrics what the page draws, `static` is the page.
"""
