"""A page on which every name stands that the crosswalk knows, as exporters write it: for panels that ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.exporter_pages import otlp_of
from tests.processors.cluster.conftest import START_S
from whichrank.diagnosis.crosswalk.rules import sources
from whichrank.diagnosis.data_file import read_toml

_LABEL = re.compile(r"\{([A-Za-z_]\w*)\}")


def every_name(instance: str, now_s: float) -> bytes:
    """An OTLP message: each metric has a point that has grown since the last, also where it is a state. now_s: Unix."""
    return otlp_of(instance, "\n".join(_lines(now_s)), now_s - START_S)


def _lines(now_s: float) -> Iterator[str]:
    for file in sources():
        table = read_toml("whichrank.diagnosis.crosswalk", file)
        for entry in table["rule"]:
            device = entry.get("device", table["source"].get("device", ()))
            forms = [*device[:1], *entry.get("attributes", {}).values()]
            labels = ",".join(f'{name}="x1"' for name in dict.fromkeys(_LABEL.findall(" ".join(forms))))
            is_state = "one_if" in entry or entry["metric"] == "hw.network.up"
            value = 7.0 if "one_if" in entry else 0.0 if is_state else now_s - 1_700_000_000.0
            yield f"{entry['names'][0]}{{{labels}}} {value}"
