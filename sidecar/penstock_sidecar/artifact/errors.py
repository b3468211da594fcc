"""What can be wrong with an artifact; each message is the last line of the step, which a condition shows."""

from __future__ import annotations

import re

_CODE = re.compile(r"<Code>([^<]{1,200})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,500})</Message>")
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_QUERY = re.compile(r"\?[^\s\"')]*")
_LOGIN = re.compile(r"//[^/\s@]*@")


class ArtifactError(Exception):
    """An artifact cannot be had, or is not what was asked for; says what was expected and what was found."""


class NeighbourLost(ArtifactError):
    """A neighbour does not give what it was asked for: another place may."""


def public(error: BaseException) -> str:
    """What a library's error says, without what can be secret: queries of URLs, logins, an answer's body."""
    text = str(error).partition("\n\nDebug source")[0]
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if status is not None:
        text = ": ".join(match[1].strip() for match in (status, code, message) if match)
    else:
        text = text.partition("\n")[0]
    return _LOGIN.sub("//…@", _QUERY.sub("?…", text))[:500]
