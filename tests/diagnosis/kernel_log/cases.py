"""Lines in the shape of the field, written for these tests (cases.tsv), and what they are wrapped in on their way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "gpu-node-17"
#: 2025-03-04 05:06:07 UTC, and this long after boot.
TIME_S = 1_741_064_767.0
MONOTONIC_S = 1234.567891
#: A log of that time is read a day later.
READ_S = TIME_S + 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    line: str
    event: str
    code: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """What it tells of time and host, besides wrapping."""

    wrap: Callable[[str], str]
    has_time: bool = False
    has_monotonic: bool = False
    has_host: bool = False


def cases() -> list[Case]:
    rows = [line.split("\t") for line in Path(__file__).with_name("cases.tsv").read_text().splitlines()]
    return [Case(event=event, code=code, device=device, line=line) for event, code, device, line in rows[1:]]


def _journald(line: str) -> str:
    record = {
        "__REALTIME_TIMESTAMP": str(int(TIME_S * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(round(MONOTONIC_S * 1e6)),
        "_HOSTNAME": HOST,
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "3",
        "MESSAGE": line,
    }
    return json.dumps(record)


def _journald_bytes(line: str) -> str:
    return json.dumps(
        {"__REALTIME_TIMESTAMP": str(int(TIME_S * 1e6)), "_HOSTNAME": HOST, "MESSAGE": list(line.encode())}
    )


def _docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": "2025-03-04T05:06:07.000000000Z"})


WRAPPERS: Mapping[str, Wrapper] = {
    "bare": Wrapper(wrap=lambda line: line),
    "dmesg": Wrapper(wrap=lambda line: f"[ 1234.567891] {line}", has_monotonic=True),
    "dmesg with caller": Wrapper(wrap=lambda line: f"[ 1234.567891][ T4711] {line}", has_monotonic=True),
    "dmesg --raw": Wrapper(wrap=lambda line: f"<3>[ 1234.567891] {line}", has_monotonic=True),
    "dmesg -T": Wrapper(wrap=lambda line: f"[Tue Mar  4 05:06:07 2025] {line}", has_time=True),
    "dmesg -x": Wrapper(wrap=lambda line: f"kern  :err   : [ 1234.567891] {line}", has_monotonic=True),
    "dmesg --color": Wrapper(
        wrap=lambda line: f"\x1b[32m[ 1234.567891] \x1b[0m\x1b[31m{line}\x1b[0m", has_monotonic=True
    ),
    "dmesg iso": Wrapper(wrap=lambda line: f"2025-03-04T05:06:07,000000+00:00 {line}", has_time=True),
    "dmesg delta": Wrapper(wrap=lambda line: f"[  +0.000012] {line}"),
    "kmsg": Wrapper(wrap=lambda line: f"3,4711,1234567891,-;{line}", has_monotonic=True),
    "kmsg with caller": Wrapper(wrap=lambda line: f"3,4711,1234567891,-,caller=T99;{line}", has_monotonic=True),
    "syslog": Wrapper(
        wrap=lambda line: f"Mar  4 05:06:07 {HOST} kernel: [ 1234.567891] {line}",
        has_time=True,
        has_monotonic=True,
        has_host=True,
    ),
    "journalctl": Wrapper(wrap=lambda line: f"Mar 04 05:06:07 {HOST} kernel: {line}", has_time=True, has_host=True),
    "journalctl short-precise": Wrapper(
        wrap=lambda line: f"Mar 04 05:06:07.000000 {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "journalctl short-iso": Wrapper(
        wrap=lambda line: f"2025-03-04T05:06:07+0000 {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "journalctl short-iso-precise": Wrapper(
        wrap=lambda line: f"2025-03-04T07:06:07.000000+02:00 {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "journalctl short-monotonic": Wrapper(
        wrap=lambda line: f"[ 1234.567891] {HOST} kernel: {line}", has_monotonic=True, has_host=True
    ),
    "journalctl short-unix": Wrapper(
        wrap=lambda line: f"1741064767.000000 {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "journalctl short-full": Wrapper(
        wrap=lambda line: f"Tue 2025-03-04 05:06:07 UTC {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "journalctl json": Wrapper(wrap=_journald, has_time=True, has_monotonic=True, has_host=True),
    "journalctl json of bytes": Wrapper(wrap=_journald_bytes, has_time=True, has_host=True),
    "rsyslog iso": Wrapper(
        wrap=lambda line: f"2025-03-04T05:06:07.000000+00:00 {HOST} kernel: [ 1234.567891] {line}",
        has_time=True,
        has_monotonic=True,
        has_host=True,
    ),
    "rfc3164": Wrapper(wrap=lambda line: f"<3>Mar  4 05:06:07 {HOST} kernel: {line}", has_time=True, has_host=True),
    "rfc5424": Wrapper(
        wrap=lambda line: f"<3>1 2025-03-04T05:06:07.000000Z {HOST} kernel - - - {line}", has_time=True, has_host=True
    ),
    "rfc5424 with data": Wrapper(
        wrap=lambda line: f'<3>1 2025-03-04T05:06:07Z {HOST} kernel - - [origin x="y"] {line}',
        has_time=True,
        has_host=True,
    ),
    "containerd": Wrapper(wrap=lambda line: f"2025-03-04T05:06:07.000000000Z stdout F {line}", has_time=True),
    "containerd of dmesg": Wrapper(
        wrap=lambda line: f"2025-03-04T05:06:07.000000000Z stderr F [ 1234.567891] {line}",
        has_time=True,
        has_monotonic=True,
    ),
    "docker": Wrapper(wrap=_docker, has_time=True),
    "kubectl logs --prefix": Wrapper(wrap=lambda line: f"[pod/kmsg-abc12/reader] {line}"),
    "kubectl logs --prefix --timestamps": Wrapper(
        wrap=lambda line: f"[pod/kmsg-abc12/reader] 2025-03-04T05:06:07.000000000Z {line}", has_time=True
    ),
    "grep -H": Wrapper(
        wrap=lambda line: f"/var/log/messages:Mar  4 05:06:07 {HOST} kernel: {line}", has_time=True, has_host=True
    ),
    "grep -n of dmesg": Wrapper(wrap=lambda line: f"dmesg.0:4711:[ 1234.567891] {line}", has_monotonic=True),
    "grep -C": Wrapper(
        wrap=lambda line: f"kern.log-4711-Mar  4 05:06:07 {HOST} kernel: [ 1234.567891] {line}",
        has_time=True,
        has_monotonic=True,
        has_host=True,
    ),
    "pdsh": Wrapper(wrap=lambda line: f"{HOST}: [Tue Mar  4 05:06:07 2025] {line}", has_time=True, has_host=True),
    "clush": Wrapper(wrap=lambda line: f"{HOST}: [ 1234.567891] {line}", has_monotonic=True, has_host=True),
    "stern": Wrapper(wrap=lambda line: f"kmsg-abc12 reader [ 1234.567891] {line}", has_monotonic=True),
    "busybox": Wrapper(
        wrap=lambda line: f"Mar  4 05:06:07 {HOST} kern.err kernel: {line}", has_time=True, has_host=True
    ),
    "CRLF": Wrapper(wrap=lambda line: f"[ 1234.567891] {line}\r", has_monotonic=True),
    "pstore": Wrapper(wrap=lambda line: f"<0>[ 1234.567891] {line}", has_monotonic=True),
}
