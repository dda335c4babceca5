"""Images under the tags of the compose file, made here: no image registry can be reached.

A small Debian root stands in for the base images; what runs in them is real: Kafka's published libraries, Collector,
Prometheus, VictoriaLogs and Jaeger as ``tests/stack`` builds them, whichrank and the demo job by the project's own
Dockerfile. Entry points, users and folders are those of the published images, as their Dockerfiles have them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.compose.engine import Engine
from tests.stack.parts.cache import digest_of, made_once
from tests.stack.parts.compose import services
from tests.stack.parts.go_programs import JAEGER, PROMETHEUS, VICTORIALOGS, built, built_collector
from tests.stack.parts.kafka import kafka_home
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.promtool import PROMTOOL

DEBIAN = "bookworm"
PACKAGES = "ca-certificates,openjdk-17-jre-headless,python3,python3-venv,gcc,libc6-dev,busybox-static"
ROOT_TIMEOUT_S = 3600.0
#: Programs of busybox that images are expected to have.
APPLETS = ("sh", "wget", "true", "chown")
#: Settings of package managers, which a build here needs as well.
MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")

KAFKA = """
FROM local/debian
COPY kafka /opt/kafka
RUN useradd --uid 1000 appuser && install --directory --owner=1000 /var/lib/kafka/data
USER 1000
VOLUME /var/lib/kafka/data
"""
PYTHON = """
FROM local/debian
COPY machine /
RUN ln -s python3 /usr/bin/python
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""
BUSYBOX = """
FROM scratch
ADD root.tar /
CMD ["sh"]
"""
COLLECTOR = """
FROM scratch
COPY otelcol-contrib /otelcol-contrib
USER 10001:10001
ENTRYPOINT ["/otelcol-contrib"]
"""
PROMETHEUS_IMAGE = """
FROM {busybox}
COPY prometheus promtool /bin/
WORKDIR /prometheus
RUN chown 65534:65534 /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
"""
#: As theirs it has no folder for data.
VICTORIALOGS_IMAGE = """
FROM scratch
COPY victoria-logs-prod /victoria-logs-prod
ENTRYPOINT ["/victoria-logs-prod"]
"""
JAEGER_IMAGE = """
FROM scratch
COPY jaeger-linux /cmd/jaeger/jaeger-linux
USER 10001
ENTRYPOINT ["/cmd/jaeger/jaeger-linux"]
"""


def debian_root() -> Path:
    """A tar of a minimal Debian, made once."""
    if shutil.which("debootstrap") is None:
        pytest.skip("there is no debootstrap (Debian: the package debootstrap)")

    def make(target: Path) -> None:
        folder = target.with_suffix(".folder")
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, folder],
            capture_output=True,
            text=True,
            timeout=ROOT_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        for archive in (folder / "var/cache/apt/archives").glob("*.deb"):
            archive.unlink()
        subprocess.run(["tar", "--one-file-system", "-C", folder, "-cf", target, "."], check=True)
        shutil.rmtree(folder)

    return made_once("debian", digest_of([DEBIAN.encode(), PACKAGES.encode()]), make)


def make_images(engine: Engine, work: Path) -> None:
    """Everything that compose starts here, under its tags (Grafana cannot be had)."""
    tags = {name: definition.image for name, definition in services().items()}
    root = debian_root()
    engine.run("docker", "import", root, "local/debian")
    _build(engine, work / "busybox", tags["busybox"], BUSYBOX, {"root.tar": _busybox_root(root, work)})
    _build(engine, work / "kafka", tags["kafka"], KAFKA, {"kafka": kafka_home()})
    _build(engine, work / "collector", tags["collector"], COLLECTOR, {"otelcol-contrib": built_collector()})
    prometheus = PROMETHEUS_IMAGE.format(busybox=tags["busybox"])
    programs = {"prometheus": built(PROMETHEUS), "promtool": built(PROMTOOL)}
    _build(engine, work / "prometheus", tags["prometheus"], prometheus, programs)
    logs = {"victoria-logs-prod": built(VICTORIALOGS)}
    _build(engine, work / "victorialogs", tags["victorialogs"], VICTORIALOGS_IMAGE, logs)
    _build(engine, work / "jaeger", tags["jaeger"], JAEGER_IMAGE, {"jaeger-linux": built(JAEGER)})

    machine = work / "python" / "machine"
    for path in map(Path, MACHINE):
        if path.exists():
            copy = machine / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    _build(engine, work / "python", "python:3.12-slim-bookworm", PYTHON, {})
    for target in ("whichrank", "demo"):
        name = "processor" if target == "whichrank" else target
        engine.build(tags[name], REPOSITORY, f"--target={target}")


def _build(engine: Engine, folder: Path, tag: str, dockerfile: str, files: dict[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for name, source in files.items():
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            os.link(source, folder / name) if _same_disk(source, folder) else shutil.copy(source, folder / name)
    engine.build(tag, folder)


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _busybox_root(root: Path, work: Path) -> Path:
    """Debian's static busybox with its names, as the image busybox:musl has it."""
    folder = work / "busybox-root"
    (folder / "bin").mkdir(parents=True)
    (folder / "tmp").mkdir()
    with tarfile.open(root) as packed:
        names = [name for name in packed.getnames() if name.endswith("bin/busybox")]
        content = packed.extractfile(names[0])
        assert content is not None
        (folder / "bin" / "busybox").write_bytes(content.read())
    (folder / "bin" / "busybox").chmod(0o755)
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    packed_root = work / "busybox-root.tar"
    subprocess.run(["tar", "-C", folder, "-cf", packed_root, "."], check=True)
    return packed_root
