"""Changes what an installed operator renders into its sidecar block, in the image that is being built."""

from pathlib import Path

import penstock_operator.desired.sidecar as module

CHANGES = {
    "spec = backend.spec\n    words = {": 'spec = backend.spec\n    words = {"--log-level": "debug",',
    '        "--log-level": spec.sidecar.log_level,\n': "",
    "        **pods.probes(ADMIN_PORT),\n": "        **pods.probes(ADMIN_PORT),\n"
    '        "startupProbe": pods.probes(ADMIN_PORT)["startupProbe"] | {"failureThreshold": 61},\n',
}

path = Path(module.__file__)
text = path.read_text(encoding="utf-8")
for old, new in CHANGES.items():
    if text.count(old) != 1:
        raise SystemExit(f"{path}: expected {old!r} once, found it {text.count(old)} times")
    text = text.replace(old, new)
path.write_text(text, encoding="utf-8")
for compiled in (path.parent / "__pycache__").glob("sidecar.*"):
    compiled.unlink()
