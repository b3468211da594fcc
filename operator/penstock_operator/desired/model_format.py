"""A backend whose model is files of a format: the class of the SDK, and the image, that serve them."""

from __future__ import annotations

from penstock_operator.api.model import Model, ModelBase, ModelFormat, ModelPython
from penstock_operator.desired.config import RenderConfig


def as_python(model: Model, given: ModelFormat, config: RenderConfig) -> ModelPython:
    """The Python model that serves the files.

    Args:
        model: all of `spec.model`.
        given: its `format`.
        config: has the images.
    """
    kwargs = dict(given.init_kwargs or {})
    # NB: what may be opened is said by fields alone, which a policy of the cluster can look at.
    for reserved in ("path", "allow_pickle", "on_version_mismatch"):
        kwargs.pop(reserved, None)
    if model.artifact is not None:
        kwargs["path"] = model.artifact.mount_path
    if given.allow_pickle:
        kwargs["allow_pickle"] = True
    if given.on_version_mismatch != "Refuse":
        kwargs["on_version_mismatch"] = given.on_version_mismatch
    shared = {name: getattr(given, name) for name in ModelBase.model_fields}
    policy = given.image_pull_policy or config.image_pull_policy or None
    return ModelPython(
        **shared | {"image_pull_policy": policy},
        image=config.format_image.format(format=given.name),
        target=f"penstock.formats.{given.name}:Model",
        init_kwargs=kwargs,
    )
