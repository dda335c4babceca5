"""Metrics of one entity as bytes, between two stages: what a rule asks for, in our words already."""

from __future__ import annotations

import json
from dataclasses import fields

from ...telemetry.records import Identity, Point, Samples

_IDENTITY = tuple(each.name for each in fields(Identity))


def write_samples(samples: Samples) -> bytes:
    """The samples as JSON. Raises ValueError or TypeError for what is none."""
    points = [[p.name, p.value, dict(p.attributes), p.time_ns, p.start_ns] for p in samples.points]
    identity = [getattr(samples.identity, name) for name in _IDENTITY]
    return json.dumps([identity, samples.entity, dict(samples.resource), points], separators=(",", ":")).encode()


def read_samples(value: bytes) -> Samples:
    """What ``write_samples`` wrote. Raises ValueError or TypeError for anything else."""
    identity, entity, resource, points = json.loads(value)
    return Samples(
        identity=Identity(**dict(zip(_IDENTITY, identity, strict=False))),
        entity=entity,
        resource=resource,
        points=tuple(
            Point(name=name, value=number, attributes=attributes, time_ns=time_ns, start_ns=start_ns)
            for name, number, attributes, time_ns, start_ns in points
        ),
    )
