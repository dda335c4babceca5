"""Signed requests after the Standard Webhooks scheme, for every command that sends some. Pure functions.

``webhook-signature: v1,BASE64`` is HMAC-SHA256 over ``ID.TIMESTAMP.BODY``. Whoever receives one compares it in constant
time, refuses a time stamp that is more than five minutes off, and an id that it has seen within them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

#: A secret as Standard Webhooks writes it: this and base64.
_PREFIX = "whsec_"


def signed_headers(key: bytes, identity: str, stamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request. identity: its id; stamp: of this try, Unix seconds."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "whichrank",
        "webhook-id": identity,
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign(key, identity, stamp, body),
    }


def sign(key: bytes, identity: str, stamp: int, body: bytes) -> str:
    """The value of the signature header after the Standard Webhooks scheme: version 1, base64 of an HMAC-SHA256.

    stamp: Unix seconds.
    """
    content = f"{identity}.{stamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def key_of(secret: str, name: str) -> bytes:
    """The bytes of the secret, decoded where it says that it is base64.

    name: of the setting, for the words of the ValueError that is raised where it is not.
    """
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:
        raise ValueError(f"{name}: what follows {_PREFIX} is not base64") from None
