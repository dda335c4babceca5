"""Software of one rank: its libraries' versions, its code's commit, its container's image. Reads files of the rank.

Everything is read as the rank sees it, from its own root folder on, so that a container's own torch is found and not
the node's; and with the rights of its user, who says where it lies. A file may lie on a dead mount: whoever calls this
runs in a process that can be left behind.
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
from ...processes.processes import process_uid
from ...user_files.user_files import files_of
from ..base.kernel_files import read_text
from .rank_environments import RankEnvironment

_MAX_MAPS_BYTES = 16 << 20
_PAGE_BYTES = 4096
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


class RankFolders:
    """Files as one process sees them, read with the rights of its user."""

    def __init__(self, proc: Path, pid: int) -> None:
        """Raises OSError where nothing of the process may be read."""
        uid = process_uid(pid, proc)
        if uid is None:
            raise ProcessLookupError(pid)
        self._files = files_of(uid, pid)
        self._proc, self._pid = str(proc), pid
        self._root = self._files.root_of(pid, self._proc)

    def close(self) -> None:
        """Lets go of the root folder."""
        os.close(self._root)

    @property
    def working_folder(self) -> str:
        """Where the process stands; "" where that is not told."""
        try:
            return self._files.working_folder(self._pid, self._proc)
        except OSError:
            return ""

    def text(self, path: str, limit_bytes: int = _PAGE_BYTES) -> str:
        """A file's first bytes, stripped; "" where there is no regular file, or it may not be read."""
        try:
            raw = self._files.read(self._root, path, limit_bytes)
        except OSError:
            return ""
        return raw.decode("utf-8", "replace").replace("\0", "\ufffd").strip()

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; [] where there is none or it may not be listed."""
        try:
            return sorted(self._files.list_names(self._root, path))
        except OSError:
            return []


def rank_software(proc: Path, rank: RankEnvironment) -> dict[str, str]:
    """Versions by what they are of: libraries of the rank's Python, its code's commit, its container's image.

    {} if nothing of the process may be read.
    """
    found: dict[str, str] = {}
    for pid in (rank.pid, *rank.helpers):
        found = _libraries(proc, pid)
        if found:  # else a shell that started the program
            break
    commit = _code_commit(proc, rank.pid)
    if commit:
        found["code"] = commit
    image = next((rank.environ[key] for key in _IMAGE_VARIABLES if rank.environ.get(key)), "")
    if image:
        found["container_image"] = cut_text(image, 200)
    return found


def _libraries(proc: Path, pid: int) -> dict[str, str]:
    mapped = mapped_libraries(read_text(proc / str(pid) / "maps", _MAX_MAPS_BYTES) or "")
    try:
        folders = RankFolders(proc, pid)
    except OSError:
        return {}
    try:
        versions = {library.what: _library_version(folders, library)[:100] for library in mapped}
    finally:
        folders.close()
    return {what: version for what, version in versions.items() if version}


def _library_version(folders: RankFolders, library: Library) -> str:
    packages = library.site_packages
    if packages:
        if library.what == "torch":
            version = torch_version(folders.text(f"{packages}/torch/version.py"))
            if version:
                return version
        if library.distribution:
            version = version_in_distributions(folders.names(packages), library.distribution)
            if version:
                return version
    return version_in_name(library.path)


def _code_commit(proc: Path, pid: int) -> str:
    """Commit that is checked out where the rank was started; "" outside of a repository."""
    try:
        folders = RankFolders(proc, pid)
    except OSError:
        return ""
    try:
        place = folders.working_folder
        for _ in range(_MAX_LEVELS):
            git = os.path.join(place, ".git")
            pointer = folders.text(git)  # a file in a work tree or a submodule; a folder cannot be read
            if pointer.startswith("gitdir:"):
                return _commit_in(folders, os.path.normpath(os.path.join(place, pointer[7:].strip())))
            if folders.text(f"{git}/HEAD"):
                return _commit_in(folders, git)
            if place in ("/", ""):
                break
            place = os.path.dirname(place)
        return ""
    finally:
        folders.close()


def _commit_in(folders: RankFolders, git: str) -> str:
    commit, reference = git_head(folders.text(f"{git}/HEAD"))
    if commit or not reference:
        return commit
    # References of a work tree lie in the repository that it belongs to.
    common = folders.text(f"{git}/commondir")
    shared = os.path.normpath(os.path.join(git, common)) if common else git
    for place in (git, shared):
        commit = git_commit(folders.text(f"{place}/{reference}"))
        if commit:
            return commit
    return packed_commit(folders.text(f"{shared}/packed-refs", _MAX_PACKED_REFS_BYTES), reference)
