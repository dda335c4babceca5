"""Text that came from outside, as it may go on a terminal's line, into a log, a label or a file's name.

Standard library only.
"""

from __future__ import annotations

import hashlib
import re

#: Ids of incidents: in file names, addresses and tags they stand as they are.
_INCIDENT_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")
_MAX_FILE_NAME = 80


def printable(text: str, most: int = 0) -> str:
    """The text on one line: what is no character that can be seen becomes a space. most: characters; 0: all."""
    if most:
        text = text[:most]
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def is_incident_id(text: str) -> bool:
    """Whether it has the form of an incident's id."""
    return _INCIDENT_ID.fullmatch(text) is not None


def safe_incident_id(text: str) -> str:
    """The id, or where it has another form than ids have one made of it, which is always the same."""
    if not text or is_incident_id(text):
        return text
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def file_name(text: str) -> str:
    """A name for a file or folder: the text, or where that is none what is left of it, with a hash of all of it."""
    safe = _NO_FILE_NAME.sub("_", text)[:_MAX_FILE_NAME].lstrip(".-") or "_"  # "-rf" is an option to many programs
    if safe == text:
        return text
    return f"{safe}-{hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"
