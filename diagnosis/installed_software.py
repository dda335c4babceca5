"""What software a process runs, from what it has mapped and what lies beside that: torch, NCCL, CUDA, code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: Of one process; a torch process maps some 600 files.
_MAX_LINES = 200_000
#: Library by the beginning of its file's name -> (what it is, the distribution that brings it, as pip writes that).
_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "libnccl.so": ("nccl", "nvidia_nccl_cu"),
    "libcudart.so": ("cuda", "nvidia_cuda_runtime"),
    "libcudnn.so": ("cudnn", "nvidia_cudnn_cu"),
    "libcublas.so": ("cublas", "nvidia_cublas"),
    "libtorch_cpu.so": ("torch", "torch"),
    "libtransformer_engine.so": ("transformer_engine", "transformer_engine"),
    "libnvshmem_host.so": ("nvshmem", "nvidia_nvshmem_cu"),
    "libcuda.so": ("cuda_driver", ""),
    "libnccl-net.so": ("nccl_net_plugin", ""),
    "libfabric.so": ("libfabric", ""),
    "libibverbs.so": ("libibverbs", ""),
    "libmlx5.so": ("libmlx5", ""),
    "librccl.so": ("rccl", ""),
    "libamdhip64.so": ("hip", ""),
}
_SO_VERSION = re.compile(r"\.so\.(\d[\w.]*)$")
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]{1,100})['\"]", re.MULTILINE)
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DRIVER = re.compile(r"NVRM version:.*?(?P<open>Open )?Kernel Module.*?\s(?P<version>\d{3,4}\.\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Library:
    """``distribution``: beginning of the folder's name (``NAME-VERSION.dist-info``) that says its version; "" none."""

    what: str
    path: str
    distribution: str

    @property
    def site_packages(self) -> str:
        """The folder of Python's packages in which the library lies, "" for a library of the system."""
        before, found, _ = self.path.rpartition("-packages/")
        return f"{before}-packages" if found else ""


def mapped_libraries(maps: str) -> list[Library]:
    """Libraries in a /proc/PID/maps whose versions are worth knowing, each once."""
    found: dict[str, Library] = {}
    for line in maps.splitlines()[:_MAX_LINES]:
        slash = line.find("/")
        if slash < 0:
            continue
        path = line[slash:].removesuffix(" (deleted)")
        name = path.rpartition("/")[2]
        beginning = name[: name.find(".so") + 3]
        known = _LIBRARIES.get(beginning)
        if known is not None and known[0] not in found:
            found[known[0]] = Library(known[0], path, known[1])
    return list(found.values())


def version_in_name(path: str) -> str:
    """The version in a library's file name: ``2.21.5`` of libnccl.so.2.21.5.

    "" where only the interface's number stands there (libnccl.so.2).
    """
    match = _SO_VERSION.search(path)
    return match[1] if match is not None and "." in match[1] else ""


def version_in_distributions(names: Iterable[str], distribution: str) -> str:
    """The version of a distribution from the names in site-packages (``nvidia_nccl_cu12-2.21.5.dist-info``); "" if
    none.

    distribution: its name without a CUDA suffix.
    """
    for name in names:
        if name.endswith(".dist-info"):
            project, _, version = name.removesuffix(".dist-info").partition("-")
            plain = project.lower().replace("-", "_")
            if plain == distribution or re.fullmatch(re.escape(distribution) + r"(?:_cu|_)?\d*", plain):
                return version
    return ""


def torch_version(text: str) -> str:
    """The version in the text of torch/version.py, "" if none.

    It has the build ("2.6.0+cu124"), which the folder's name need not have.
    """
    match = _TORCH_VERSION.search(text)
    return match[1] if match is not None else ""


def nvidia_driver(text: str) -> str:
    """The driver's version in /proc/driver/nvidia/version: ``550.54.15``, ``575.51.03 (open)``; "" if none."""
    match = _DRIVER.search(text[:4096])
    if match is None:
        return ""
    return match["version"] + (" (open)" if match["open"] else "")


# --- git --------------------------------------------------------------------------------------------------------------


def git_head(text: str) -> tuple[str, str]:
    """(commit, reference) in a HEAD file; one of them is "", both where it is no such file."""
    text = text.strip()
    if text.startswith("ref:"):
        reference = text[4:].strip()
        # It becomes part of a path.
        is_safe = reference.startswith("refs/") and ".." not in reference and len(reference) < 300
        return "", reference if is_safe else ""
    return (text, "") if _HASH.fullmatch(text) else ("", "")


def git_commit(text: str) -> str:
    """The commit in a reference's own file, "" if that holds something else."""
    text = text.strip()
    return text if _HASH.fullmatch(text) else ""


def packed_commit(text: str, reference: str) -> str:
    """The commit of ``reference`` in a packed-refs file, "" if it is not there."""
    for line in text.splitlines():
        commit, _, name = line.partition(" ")
        if name.strip() == reference and _HASH.fullmatch(commit):
            return commit
    return ""


def os_release(text: str) -> dict[str, str]:
    """The assignments in an /etc/os-release, value by name."""
    return dict(_assignments(text))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines()[:200]:
        key, equals, value = line.partition("=")
        if equals:
            yield key.strip(), value.strip().strip("\"'")
