"""The images, as an OCI layout that any tool can copy to a registry."""

import os
from pathlib import Path

from devcluster import images
from release.version import ROOT, Commit

TITLES = {
    "operator": "Penstock's operator",
    "router": "Penstock's router",
    "sidecar": "Penstock's batching sidecar",
    "python-model": "Python with Penstock's SDK: the base of images with a model",
    "huggingface-model": "Penstock's server of encoders of the Hugging Face Hub",
    "lightgbm-model": "Penstock's server of LightGBM files",
    "mlflow-model": "Penstock's server of models that MLflow saved",
    "onnx-model": "Penstock's server of ONNX files",
    "sklearn-model": "Penstock's server of scikit-learn files",
    "xgboost-model": "Penstock's server of XGBoost files",
}


def build(target: str, into: Path, commit: Commit) -> str:
    """Build one image into the layout.

    Args:
        target: a key of `TITLES`.
        into: the folder of the layout.
        commit: what is built; all files in the image have its time.

    Returns:
        The digest of its manifest.

    Raises:
        DevclusterError: the build failed.
    """
    labels = {
        "title": TITLES[target],
        "version": commit.version,
        "revision": commit.revision,
        "licenses": "Apache-2.0",
    }
    if source := os.environ.get("SOURCE_URL"):
        labels["source"] = source
    tag = f"localhost/penstock-release/{target}:{commit.version}"
    options = [f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items()]
    stage, given = images.stage(target)
    images.build(
        dockerfile=ROOT / "Dockerfile",
        tag=tag,
        target=stage,
        build_args={"COMPILE": "yes"} | given,
        # Without the cache: a layer that was cached has the time of its first build.
        options=[*options, f"--timestamp={commit.epoch}", "--no-cache"],
    )
    return images.export(tag, into, f"{target}-{commit.version}")
