"""Where followers find the judge: a listening socket on the first free port."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence


def listen(ports: Sequence[int], report: Callable[[str], None]) -> socket.socket | None:
    """A listening socket on the first of the ports that is free, over IPv4 and IPv6.

    None, and a line to ``report``, if none is.
    """
    problem = ""
    for port in ports:
        for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                problem = str(error.strerror)
                continue
            try:
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(128)
            except OSError as error:
                problem = str(error.strerror)
                listener.close()
                if family == socket.AF_INET6 and error.errno in (97, 99):  # no IPv6 on this machine
                    continue
                break
            return listener
    report(f"no port to listen on among {', '.join(map(str, ports))}: {problem}; other nodes judge for themselves")
    return None
