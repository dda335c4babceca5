"""Storage as the client sees it: mounts and their probes, NFS, Lustre, disks."""
