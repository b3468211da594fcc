"""Who may report, with the apiserver's own tokens and reviews: the pod itself, from its own address, now."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from penstock_wire.control.report import SidecarReport, encode
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import INSTALLED_IN, Namespace, container_backend

URL = f"https://penstock-operator.{INSTALLED_IN}.svc:8016/reports/"
AUDIENCE = "penstock-operator"

SERVES = """
import http.server
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""

POSTS = """
import json, ssl, sys, urllib.error, urllib.request
asked, found = json.load(sys.stdin), {}
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(cadata=asked["authorities"])
for name, (url, token, report) in asked["posts"].items():
    headers = {"authorization": "Bearer " + token} if token else {}
    request = urllib.request.Request(url, report.encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            found[name] = str(answer.status)
    except urllib.error.HTTPError as error:
        found[name] = f"{error.code} {json.load(error)['reason']}"
print(json.dumps(found))
"""

Post = tuple[str, str, str]
"""URL, token, report."""


def token(namespace: Namespace, pod: dict[str, Any] | None, *, audience: str = AUDIENCE) -> str:
    """A token of the backend's ServiceAccount, by a TokenRequest, bound to a pod or to nothing."""
    meta = (pod or {}).get("metadata", {})
    bound = (
        "--bound-object-kind=Pod",
        f"--bound-object-name={meta.get('name')}",
        f"--bound-object-uid={meta.get('uid')}",
    )
    return namespace.kubectl(
        "create", "token", "b-backend", f"--audience={audience}", *(bound if pod else ())
    ).strip()


def aged(original: str, key: Path, *, seconds: float) -> str:
    """A token as if it had been given earlier, signed by the cluster's own key."""
    header, claims, _ = original.split(".")
    payload = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    payload |= {name: int(payload[name] - seconds) for name in ("iat", "nbf", "exp")}
    signed = f"{header}.{_coded(json.dumps(payload).encode())}"
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(private.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_coded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def report(pod: dict[str, Any]) -> str:
    """A report about a pod."""
    meta = pod["metadata"]
    words = SidecarReport(pod=meta["name"], uid=meta["uid"], seq=1, state="ready", settings_version=1)
    return encode(words).decode()


def test_only_the_pod_itself_may_report(namespace: Namespace, operator: Namespace) -> None:
    """Every other token, sender and subject is refused with its reason; the pod's own is taken."""
    namespace.apply(container_backend("b", script=SERVES, replicas=2))
    namespace.wait_ready("modelbackend", "b")
    own, other = namespace.pods("b")
    name = own["metadata"]["name"]
    secret = operator.get("secret", "penstock-operator-tls") or {}
    authorities = base64.b64decode(secret["data"]["ca.crt"]).decode()
    sidecar, good = URL + "sidecar", token(namespace, own)

    def asked(posts: dict[str, Post]) -> str:
        return json.dumps({"authorities": authorities, "posts": posts})

    def from_own_pod(posts: dict[str, Post]) -> dict[str, str]:
        command = ("exec", "-i", name, "-c", "model", "--", "python", "-c", POSTS)
        answers: dict[str, str] = json.loads(namespace.kubectl(*command, input=asked(posts)))
        return answers

    key = namespace.cluster.state.pki / "service-account.key"
    mark = good[:-2] + ("AA" if good[-2:] != "AA" else "BB")
    shown, kept = token(namespace, other), token(namespace, other, audience=AUDIENCE)
    outcomes = from_own_pod(
        {
            "its own": (sidecar, good, report(own)),
            "its own, as if given a minute ago": (sidecar, aged(good, key, seconds=60), report(own)),
            "none": (sidecar, "", report(own)),
            "no token": (sidecar, "nonsense", report(own)),
            "another signature": (sidecar, mark, report(own)),
            "expired": (sidecar, aged(good, key, seconds=7200), report(own)),
            "for the apiserver": (
                sidecar,
                token(namespace, own, audience="https://kubernetes.default.svc"),
                report(own),
            ),
            "for another audience": (sidecar, token(namespace, own, audience="elsewhere"), report(own)),
            "of no pod": (sidecar, token(namespace, None), report(own)),
            "about another pod": (sidecar, good, report(other)),
            "another pod's": (sidecar, shown, report(other)),
            "as a router": (URL + "router", good, report(own)),
            "with NaN": (sidecar, good, report(own).replace('"seq":1', '"seq":NaN')),
            "cut short": (sidecar, good, report(own)[:-20]),
        }
    )
    assert outcomes == {
        "its own": "200",
        "its own, as if given a minute ago": "200",
        "none": "401 no_token",
        "no token": "401 bad_token",
        "another signature": "401 bad_token",
        "expired": "401 bad_token",
        "for the apiserver": "401 bad_token",
        "for another audience": "401 bad_token",
        "of no pod": "403 unbound_token",
        "about another pod": "403 other_pod",
        "another pod's": "403 wrong_peer",
        "as a router": "403 wrong_role",
        "with NaN": "400 bad_report",
        "cut short": "400 bad_report",
    }
    from_node = json.loads(
        namespace.run_python(POSTS, input=asked({"from the node": (sidecar, good, report(own))}))
    )
    assert from_node == {"from the node": "403 wrong_peer"}

    # The other pod goes: neither what was reviewed before, nor what is seen for the first time, is good.
    namespace.kubectl("delete", "pod", other["metadata"]["name"], "--grace-period=1")
    late = {"seen": (sidecar, shown, report(other)), "not seen": (sidecar, kept, report(other))}
    began = time.monotonic()
    invalid = {"401 bad_token", "403 unknown_pod"}
    not_yet = {"403 wrong_peer", "429 too_many_tokens", "503 no_review"}

    def refused() -> dict[str, str] | None:
        answers_after = from_own_pod(late)
        assert set(answers_after.values()) <= invalid | not_yet, answers_after
        return answers_after if set(answers_after.values()) <= invalid else None

    outcomes_after = wait_for("the deleted pod's tokens to be invalid", refused)
    print(f"{outcomes_after} {time.monotonic() - began:.1f} s after the pod was deleted")
