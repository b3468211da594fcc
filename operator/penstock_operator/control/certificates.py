"""The keys of the report channel: kept in a Secret, replaced as `rotation` decides, shown by the server.

The leader writes the Secret, and the next leader reads it. It is read every few seconds: if it was deleted,
or its annotation `penstock.dev/rotate` has a new value, a rotation begins.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Callable
from dataclasses import replace

from penstock_operator.clock import Clock
from penstock_operator.control import pki
from penstock_operator.control.rotation import Issued, Keyring, Lifetimes, Step, next_step, replaced_by
from penstock_operator.errors import ClusterError
from penstock_operator.kinds import SECRET
from penstock_operator.kube.cluster import Cluster, Obj

INTERVAL = 10.0
"""Seconds between two reads of the Secret; one GET each."""

ROTATE = "penstock.dev/rotate"
"""Annotation of the Secret: any new value asks for a rotation."""


class Certificates:
    """Keeps the keys, and the server's context in step with them.

    Args:
        changed: called with the certificates of the trusted authorities, PEM, whenever they change.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        names: tuple[str, ...],
        lifetimes: Lifetimes,
        clock: Clock,
        changed: Callable[[bytes], None],
        log: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._names = names
        self._lifetimes = lifetimes
        self._clock = clock
        self._changed = changed
        self._log = log
        self._keyring: Keyring | None = None
        self.context = server_context()
        """The server's TLS context; it shows a certificate from the first `ensure` on."""

    @property
    def ends(self) -> float | None:
        """The end of the shown certificate, seconds since the epoch; None while none is shown."""
        return None if self._keyring is None else self._keyring.serving.ends

    @property
    def replaced_by(self) -> float | None:
        """The time by which it will have been replaced, if nothing prevents it; None while none is shown."""
        return None if self._keyring is None else replaced_by(self._keyring, lifetimes=self._lifetimes)

    async def ensure(self) -> None:
        """Do the steps that are due, and bring the Secret, the server and the subscribers in line.

        Raises:
            ClusterError: the Secret could not be read or written; the server still shows the old certificate.
        """
        live = await self._cluster.get(SECRET, self._namespace, self._name)
        stored = self._stored(live)
        keyring = stored if live is not None and stored is not None else self._keyring
        now = self._clock.now().timestamp()
        if live is not None:
            asked = (live["metadata"].get("annotations") or {}).get(ROTATE, "")
        else:
            # A user who deletes the Secret wants new keys; with those in memory, all pods can follow.
            asked = f"deleted {now}"
        while True:
            step = next_step(keyring, names=self._names, lifetimes=self._lifetimes, asked=asked, now=now)
            if step is None:
                break
            keyring = self._done(step, keyring, asked=asked, now=now)
            self._log("report channel's keys", step=step.value, ends=int(keyring.serving.ends))
        assert keyring is not None  # noqa: S101 - MAKE is the step where there is none
        if keyring != stored:
            await self._cluster.apply(SECRET, self._manifest(keyring, live))
        self._take(keyring)

    async def keep(self) -> None:
        """Call `ensure` every `INTERVAL` until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL)
            try:
                await self.ensure()
            except ClusterError as error:
                self._log("report channel's keys not kept", level="warning", error=str(error))

    def _done(self, step: Step, keyring: Keyring | None, *, asked: str, now: float) -> Keyring:
        lives = self._lifetimes
        if keyring is None or step is Step.MAKE:
            made = pki.make_authority(now=now, life=lives.authority)
            serving = self._issue(made, now)
            return Keyring(current=made, serving=serving, changed=now, asked=asked)
        if step is Step.ANNOUNCE:
            made = pki.make_authority(now=now, life=lives.authority)
            return replace(keyring, next=made, changed=now, asked=asked)
        if step is Step.SWITCH and keyring.next is not None:
            return replace(
                keyring,
                current=keyring.next,
                serving=self._issue(keyring.next, now),
                next=None,
                previous=replace(keyring.current, key=b""),
                changed=now,
            )
        if step is Step.RETIRE:
            return replace(keyring, previous=None)
        return replace(keyring, serving=self._issue(keyring.current, now))

    def _issue(self, authority: Issued, now: float) -> Issued:
        return pki.issue(authority, names=self._names, now=now, life=self._lifetimes.certificate)

    def _take(self, keyring: Keyring) -> None:
        before, self._keyring = self._keyring, keyring
        if before is None or before.serving != keyring.serving:
            show(self.context, keyring.serving)
        if before is None or before.authorities != keyring.authorities:
            self._changed(keyring.authorities)

    def _stored(self, live: Obj | None) -> Keyring | None:
        if live is None:
            return None
        try:
            return read_secret(live)
        except pki.UnreadableKeys as error:
            self._log(
                "report channel's keys unreadable", level="error",
                secret=f"{self._namespace}/{self._name}", error=str(error),
            )  # fmt: skip
            return None

    def _manifest(self, keyring: Keyring, live: Obj | None) -> Obj:
        metadata: Obj = {"namespace": self._namespace, "name": self._name}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        return {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": metadata,
            "type": "Opaque",
            "data": secret_data(keyring),
        }


def server_context() -> ssl.SSLContext:
    """Make a server's TLS context: 1.3 alone, no session tickets (clients keep their connections)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    return context


def show(context: ssl.SSLContext, issued: Issued) -> None:
    """Make a context show a certificate from its next handshake on."""
    # The ssl module reads only files; this one is in memory, so that the key is not on a disk.
    memory = os.memfd_create("penstock-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(issued.key + issued.certificate)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def secret_data(keyring: Keyring) -> dict[str, str]:
    """Make a Secret's `data` from a keyring; `ca.crt`, `tls.crt` and `tls.key` are the customary names."""
    words = {
        "ca.crt": keyring.authorities,
        "tls.crt": keyring.serving.certificate,
        "tls.key": keyring.serving.key,
        "current.crt": keyring.current.certificate,
        "current.key": keyring.current.key,
        "changed": repr(keyring.changed).encode(),
        "asked": keyring.asked.encode(),
    }
    if keyring.next is not None:
        words |= {"next.crt": keyring.next.certificate, "next.key": keyring.next.key}
    if keyring.previous is not None:
        words["previous.crt"] = keyring.previous.certificate
    return {name: base64.b64encode(value).decode() for name, value in words.items()}


def read_secret(live: Obj) -> Keyring:
    """Read the keyring of a Secret.

    Raises:
        UnreadableKeys: something is missing or invalid.
    """
    try:
        data = {name: base64.b64decode(value) for name, value in (live.get("data") or {}).items()}
        changed = float(data["changed"])
        asked = data["asked"].decode()
        current = pki.read(data["current.crt"], data["current.key"])
        serving = pki.read(data["tls.crt"], data["tls.key"])
        following = pki.read(data["next.crt"], data["next.key"]) if "next.crt" in data else None
        previous = pki.read(data["previous.crt"], b"") if "previous.crt" in data else None
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise pki.UnreadableKeys(f"{type(error).__name__}: {error}") from error
    if not pki.signed_by(serving, current):
        raise pki.UnreadableKeys("the authority in use did not sign the certificate that is shown")
    return Keyring(
        current=current,
        serving=serving,
        next=following,
        previous=previous,
        changed=changed,
        asked=asked,
    )
