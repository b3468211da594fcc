"""Builds a release, everything up to the push: `python -m release --help`, `make release VERSION=…`.

Reading order: `__main__` (the steps), `version`, `packages` (sdist and wheels), `images`, `chart`,
`bills` (bills of material and checksums), `notes`, `registry` (push and signatures), `errors`.

Each step writes into one folder and can be run alone. Two runs on one commit write the same bytes, except
for the bills of material, which name the time.
"""
