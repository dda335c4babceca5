"""Software of one rank: its libraries' versions, its code's commit, its container's image. Reads files of the rank.

Everything is read as the rank sees it (/proc/PID/root), so that a container's own torch is found and not the node's.
A file may lie on a dead mount: whoever calls this runs in a process that can be left behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from ....diagnosis.installed_software import (
    Library,
    git_commit,
    git_head,
    mapped_libraries,
    packed_commit,
    torch_version,
    version_in_distributions,
    version_in_name,
)
from ....telemetry.ring_layout import cut_text
from ..base.kernel_files import list_names, read_text
from .rank_environments import RankEnvironment

_MAX_MAPS_BYTES = 16 << 20
_MAX_PACKED_REFS_BYTES = 4 << 20
#: Folders between a script's and its repository's root.
_MAX_LEVELS = 16
#: Where container runtimes for clusters and people's images leave the image's name.
_IMAGE_VARIABLES = (
    "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
    "SLURM_CONTAINER",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "CONTAINER_IMAGE",
    "IMAGE_TAG",
    "NVIDIA_BUILD_ID",
)


def rank_software(proc: Path, rank: RankEnvironment) -> dict[str, str]:
    """Versions by what they are of: libraries of the rank's Python, its code's commit, its container's image.

    {} if nothing of the process may be read.
    """
    found: dict[str, str] = {}
    for pid in (rank.pid, *rank.helpers):
        found = _libraries(proc / str(pid))
        if found:  # else a shell that started the program
            break
    folder = proc / str(rank.pid)
    commit = _code_commit(folder, folder / "root")
    if commit:
        found["code"] = commit
    image = next((rank.environ[key] for key in _IMAGE_VARIABLES if rank.environ.get(key)), "")
    if image:
        found["container_image"] = cut_text(image, 200)
    return found


def _libraries(folder: Path) -> dict[str, str]:
    versions = {
        library.what: _library_version(folder / "root", library)[:100]
        for library in mapped_libraries(read_text(folder / "maps", _MAX_MAPS_BYTES) or "")
    }
    return {what: version for what, version in versions.items() if version}


def _library_version(root: Path, library: Library) -> str:
    packages = library.site_packages
    if packages:
        inside = root / packages.lstrip("/")
        if library.what == "torch":
            version = torch_version(read_text(inside / "torch/version.py") or "")
            if version:
                return version
        if library.distribution:
            version = version_in_distributions(list_names(inside), library.distribution)
            if version:
                return version
    return version_in_name(library.path)


def _code_commit(folder: Path, root: Path) -> str:
    """Commit that is checked out where the rank was started; "" outside of a repository."""
    try:
        place = os.readlink(folder / "cwd")
    except OSError:
        return ""
    for _ in range(_MAX_LEVELS):
        git = root / place.lstrip("/") / ".git"
        pointer = read_text(git)  # a file in a work tree or a submodule; a folder cannot be read
        if pointer and pointer.startswith("gitdir:"):
            target = os.path.normpath(os.path.join(place, pointer[7:].strip()))
            return _commit_in(root, target)
        if (git / "HEAD").is_file():
            return _commit_in(root, os.path.join(place, ".git"))
        if place in ("/", ""):
            break
        place = os.path.dirname(place)
    return ""


def _commit_in(root: Path, git: str) -> str:
    folder = root / git.lstrip("/")
    commit, reference = git_head(read_text(folder / "HEAD") or "")
    if commit or not reference:
        return commit
    # References of a work tree lie in the repository that it belongs to.
    common = read_text(folder / "commondir")
    shared = root / os.path.normpath(os.path.join(git, common)).lstrip("/") if common else folder
    for place in (folder, shared):
        commit = git_commit(read_text(place / reference) or "")
        if commit:
            return commit
    return packed_commit(read_text(shared / "packed-refs", _MAX_PACKED_REFS_BYTES) or "", reference)
