"""Changes what an installed operator renders into its sidecar block, in the image that is being built."""

from pathlib import Path

import penstock_operator.desired.sidecar as module

CHANGES = {
    "spec = backend.spec\n    words = {": 'spec = backend.spec\n    words = {"--log-level": "debug",',
    '        "--log-level": spec.sidecar.log_level,\n': "",
    "        **probes,\n": "        **probes,\n"
    '        "livenessProbe": probes["livenessProbe"] | {"failureThreshold": 7},\n',
}


def changed(text: str) -> str:
    """Return the module as the later operator has it."""
    for old, new in CHANGES.items():
        if text.count(old) != 1:
            raise SystemExit(f"{module.__file__}: expected {old!r} once, found it {text.count(old)} times")
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    path = Path(module.__file__)
    path.write_text(changed(path.read_text(encoding="utf-8")), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob("sidecar.*"):
        compiled.unlink()
