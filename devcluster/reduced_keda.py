"""KEDA's module with less in it: what no test of ours uses goes before it is built.

KEDA's programs link a client for each cloud, queue and database that it can ask, 3700 packages in all. Some
1650 are left, most of them Kubernetes' own. What stays is KEDA's code as it is: the controllers, the loop
that polls, the metrics server, and the scaler `metrics-api`.
"""

import re
import shutil
from pathlib import Path

from devcluster.errors import DevclusterError

_KEPT = ("apis", "cmd", "controllers", "pkg", "version", "go.mod", "go.sum")
"""All that the operator and the adapter are built from."""

_SCALERS = frozenset({"scaler.go", "metrics_api_scaler.go"})
"""Of pkg/scalers: the interface, and the one scaler."""

_AZURE = "pkg/scalers/azure/azure_service_principal.go"
"""Of this only the constants stay, names of parameters: the resolver of secrets uses them."""
_CONSTANTS = re.compile(r"^const \(\n.*?^\)\n", re.MULTILINE | re.DOTALL)

_REPLACED = (
    "pkg/scaling/resolver/aws_secretmanager_handler.go",
    "pkg/scaling/resolver/azure_keyvault_handler.go",
    "pkg/scaling/resolver/gcp_secretmanager_handler.go",
    "pkg/eventemitter/azure_event_grid_topic_handler.go",
)
"""Files in whose place `go/keda/pkg` has functions that fail."""

_BUILDER = "pkg/scaling/scalers_builder.go"
_CASE = re.compile(r'^\tcase "(?!metrics-api")[^"]+":\n\t\treturn scalers\.New.*\n', re.MULTILINE)


def reduce(module: Path, into: Path) -> None:
    """Copy the module without what is left out.

    Args:
        module: The folder of KEDA's module.
        into: An existing folder, which becomes the reduced module.

    Raises:
        DevclusterError: The module is not as expected here: another version of KEDA.
    """
    for name in _KEPT:
        source, target = module / name, into / name
        if source.is_dir():
            shutil.copytree(source, target, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, target)
    for path in into.rglob("*"):  # those of Go's module cache are read-only
        path.chmod(0o755 if path.is_dir() else 0o644)
    constants = _CONSTANTS.search(_read(into, _AZURE))
    if not constants:
        raise DevclusterError(f"KEDA's {_AZURE} has no constants")
    for path in into.joinpath(_AZURE).parent.glob("*.go"):
        path.unlink()
    into.joinpath(_AZURE).write_text(f"package azure\n\n{constants[0]}")
    for name in _SCALERS:
        _read(into, f"pkg/scalers/{name}")
    for path in into.glob("pkg/scalers/*.go"):
        if path.name not in _SCALERS:
            path.unlink()
    for name in _REPLACED:
        _read(into, name)
        into.joinpath(name).unlink()
    shutil.copytree(Path(__file__).parent / "go/keda/pkg", into / "pkg", dirs_exist_ok=True)
    text, count = _CASE.subn("", _read(into, _BUILDER))
    left = re.findall(r"scalers\.New\w+", text)
    if not count or left != ["scalers.NewMetricsAPIScaler"]:
        raise DevclusterError(
            f"expected one scaler to be left in KEDA's {_BUILDER}, found {', '.join(left) or 'none'}"
        )
    into.joinpath(_BUILDER).write_text(text)


def _read(into: Path, name: str) -> str:
    """Return the text of a file that KEDA is known to have."""
    try:
        return into.joinpath(name).read_text()
    except FileNotFoundError:
        raise DevclusterError(f"KEDA has no {name}") from None
