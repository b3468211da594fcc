"""What models answered to userConfig, in a ModelBackend's status."""

from __future__ import annotations

from dataclasses import replace

from penstock_operator import status
from penstock_wire.control.report import Reconfigure, SidecarReport
from tests.support.worlds.observed import NOW, WELL, backend, by_type, message, pod


def reconfigured(name: str, *, ok: bool, message: str = "") -> SidecarReport:
    return SidecarReport(
        pod=name,
        uid="u",
        seq=1,
        state="ready",
        settings_version=3,
        reconfigure=Reconfigure(version=3, ok=ok, message=message),
    )


def test_a_user_config_that_a_model_refuses_is_told() -> None:
    """The condition names the pods and has the model's words; each pod's outcome is in the status."""
    seen = replace(
        WELL,
        pods=[pod(), pod("p2"), pod("p3")],
        reports={
            "p1": reconfigured("p1", ok=True, message="fine"),
            "p2": reconfigured("p2", ok=False, message="threshold: expected at most 1, found 3"),
            "p3": reconfigured("p3", ok=False, message="x" * 5000),
            "gone": reconfigured("gone", ok=False, message="of a pod that is no more"),
        },
    )
    model = {"container": {"image": "i"}, "reconfigurePath": "/c"}
    result = status.backend_status(backend(model=model, userConfig={"threshold": 3}), seen, now=NOW)
    assert by_type(result)["SettingsApplied"] == ("False", "ReconfigureFailed")
    assert message(result, "SettingsApplied") == (
        "the model keeps its last userConfig in p2, p3; it said: threshold: expected at most 1, found 3"
    )
    assert by_type(result)["Ready"] == ("True", "Serving")
    assert result["reconfigure"] == [
        {"pod": "p2", "version": 3, "ok": False, "message": "threshold: expected at most 1, found 3"},
        {"pod": "p3", "version": 3, "ok": False, "message": "x" * 1023 + "…"},
        {"pod": "p1", "version": 3, "ok": True, "message": "fine"},
    ]


def test_reconfigure_results_are_bounded() -> None:
    """Ten of many pods, and those that refused are never hidden behind those that did not."""
    names = [f"p{index:03}" for index in range(100)]
    seen = replace(
        WELL,
        pods=[pod(name) for name in names],
        reports={name: reconfigured(name, ok=name != "p099") for name in names},
    )
    results = status.backend_status(backend(userConfig=1), seen, now=NOW)["reconfigure"]
    assert [result_["pod"] for result_ in results] == ["p099", *names[:9]]


def test_a_user_config_that_nobody_can_be_told() -> None:
    """A container without model.reconfigurePath: said, not passed over."""
    result = status.backend_status(backend(userConfig={}), WELL, now=NOW)
    assert by_type(result)["SettingsApplied"] == ("False", "NoReconfigurePath")
