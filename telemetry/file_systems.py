"""What a file system lies on, by the kernel's name of its type. Standard library only."""

from __future__ import annotations

#: A client of a server, or of a process that may hang as one does.
OF_SERVERS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "cifs",
        "daos",
        "fuse",
        "fuseblk",
        "glusterfs",
        "gpfs",
        "lustre",
        "mmfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "vastnfs",
        "virtiofs",
        "wekafs",
    }
)
OF_DISKS = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ntfs3", "vfat", "xfs", "zfs"}
)
IN_MEMORY = frozenset({"ramfs", "tmpfs"})
