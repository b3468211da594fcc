"""KEDA is built without what no test uses, and a version of it that looks otherwise is refused."""

import re
from pathlib import Path

import pytest

from devcluster import programs, reduced_keda
from devcluster.errors import DevclusterError

_BUILDER = """package scaling

func buildScaler() (scalers.Scaler, error) {
	switch triggerType {
	case "aws-sqs-queue":
		return scalers.NewAwsSqsQueueScaler(ctx, config)
	case "metrics-api":
		return scalers.NewMetricsAPIScaler(config, client)
	// a remark
	case "redis":
		return scalers.NewRedisScaler(ctx, false, false, config)
	default:
		return nil, fmt.Errorf("no scaler found for type: %s", triggerType)
	}
}
"""
_AZURE = """package azure

import "github.com/Azure/azure-sdk-for-go/sdk/azidentity"

const (
	ServicePrincipalAuthKey = "azureServicePrincipal"
)

func use() { azidentity.New() }
"""
_TEXTS = {
    "pkg/scaling/scalers_builder.go": _BUILDER,
    "pkg/scalers/azure/azure_service_principal.go": _AZURE,
}
_FILES = (
    *("apis/a.go", "cmd/operator/main.go", "controllers/c.go", "version/v.go", "go.mod", "go.sum"),
    *("pkg/scalers/scaler.go", "pkg/scalers/metrics_api_scaler.go", "pkg/scalers/redis_scaler.go"),
    "pkg/scalers/azure/azure_queue.go",
    "tests/e2e.go",
    "pkg/scaling/resolver/scale_resolvers.go",
    *(f"pkg/scaling/resolver/{store}_handler.go" for store in ("aws_secretmanager", "azure_keyvault")),
    *("pkg/scaling/resolver/gcp_secretmanager_handler.go", "pkg/eventemitter/eventemitter.go"),
    "pkg/eventemitter/azure_event_grid_topic_handler.go",
)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module with KEDA's folders, read-only as in Go's cache."""
    root = tmp_path / "module"
    for name, text in ({name: f"// {name}\n" for name in _FILES} | _TEXTS).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o444)
    return root


def _reduced(module: Path) -> Path:
    into = module.parent / "into"
    into.mkdir()
    reduced_keda.reduce(module, into)
    return into


def test_one_scaler_is_left_and_functions_that_fail_replace_the_secret_stores(module: Path) -> None:
    """All else stays as it is, and can be written to."""
    into = _reduced(module)
    kept = {str(path.relative_to(into)): path for path in into.rglob("*") if path.is_file()}
    assert set(kept) == {
        *("apis/a.go", "cmd/operator/main.go", "controllers/c.go", "version/v.go", "go.mod", "go.sum"),
        *("pkg/scalers/scaler.go", "pkg/scalers/metrics_api_scaler.go"),
        "pkg/scalers/azure/azure_service_principal.go",
        *("pkg/scaling/scalers_builder.go", "pkg/scaling/resolver/scale_resolvers.go"),
        *("pkg/scaling/resolver/left_out.go", "pkg/scalers/left_out.go", "pkg/eventemitter/left_out.go"),
        "pkg/eventemitter/eventemitter.go",
    }
    assert re.findall(r'case "(.*)":', kept["pkg/scaling/scalers_builder.go"].read_text()) == ["metrics-api"]
    constants = kept["pkg/scalers/azure/azure_service_principal.go"].read_text()
    assert constants == 'package azure\n\nconst (\n\tServicePrincipalAuthKey = "azureServicePrincipal"\n)\n'
    assert kept["apis/a.go"].read_text() == "// apis/a.go\n"
    assert {path.stat().st_mode & 0o777 for path in kept.values()} == {0o644}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pkg/scalers/metrics_api_scaler.go", None),
        ("pkg/scaling/resolver/azure_keyvault_handler.go", None),
        ("pkg/scalers/azure/azure_service_principal.go", "package azure\n"),
        ("pkg/scaling/scalers_builder.go", _BUILDER.replace("NewMetricsAPIScaler", "NewOtherScaler")),
        (
            "pkg/scaling/scalers_builder.go",
            _BUILDER.replace("return scalers.NewRedis", "x := scalers.NewRedis"),
        ),
    ],
)
def test_a_keda_that_looks_otherwise_is_refused(module: Path, name: str, text: str | None) -> None:
    """Or a new version would be built with more or less than is said of it."""
    module.joinpath(name).unlink()
    if text is not None:
        module.joinpath(name).write_text(text)
    with pytest.raises(DevclusterError, match="KEDA"):
        _reduced(module)


def test_what_is_left_out_is_a_part_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another way to reduce it, or another function that fails, is another build."""
    keda = programs.COMPONENTS["keda"]
    before = keda.key
    other = tmp_path / "reduced.py"
    other.write_text("# another way\n")
    monkeypatch.setattr(programs.inspect, "getfile", lambda _: str(other))
    assert keda.key != before
