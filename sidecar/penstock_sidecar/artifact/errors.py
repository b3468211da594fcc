"""What can be wrong with an artifact; each message is the last line of the step, which a condition shows."""

from __future__ import annotations

import re

_CODE = re.compile(r"<Code>([^<]{1,200})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,500})</Message>")
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_QUERY = re.compile(r"\?[^\s\"')]*")
_CAUSE = re.compile(
    r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)|(?:message|error): \"([^\"]{1,200})\""
)
"""Of a connection that failed: obstore has it in its debugging text alone."""
_CERTIFICATE_WAYS = {
    "UnknownIssuer": ": SSL_CERT_PEM can have the authority's certificate",
    "CaUsedAsEndEntity": ": the server shows an authority's, not one signed by it",
}
_ASKED = re.compile(r"performing (\w+ \S+) in ")
_LOGIN = re.compile(r"//[^/\s@]*@")


class ArtifactError(Exception):
    """An artifact cannot be had, or is not what was asked for; says what was expected and what was found."""


class NeighbourLost(ArtifactError):
    """A neighbour does not give what it was asked for: another place may."""


def public(error: BaseException, *, body: bool = False) -> str:
    """What a library's error says, without what can be secret: queries of URLs, logins, an answer's body.

    Args:
        body: whether the answer is of a service for identities, whose refusals have words alone.
    """
    text, _, debug = str(error).partition("\n\nDebug source")
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    reason = ""
    if status is not None:
        said = "" if code or not body else " ".join(text[status.end() + 1 :].split())
        text = ": ".join(match[1].strip() for match in (status, code, message) if match)
        text += f": {said}" if said else ""
    elif (cause := _CAUSE.search(debug)) is not None:
        asked = _ASKED.search(text)
        text = asked[1].replace("POST REDACTED", "POST to STS") if asked else text.partition("\n")[0]
        certificate, said = cause.groups()
        reason = f": {said or f'InvalidCertificate {certificate}'}{_CERTIFICATE_WAYS.get(certificate, '')}"
    else:
        text = text.partition("\n")[0]
    return "".join(_LOGIN.sub("//…@", _QUERY.sub("?…", part)) for part in (text, reason))[:500]
