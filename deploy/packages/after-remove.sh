#!/bin/sh
# What Python has written beside its modules goes with them. What the services have learned and kept goes when a deb is
# purged, or an rpm is removed (which knows no difference).
set -e
case "${1:-}" in
  remove | purge | 0)
    rm -rf "${DPKG_ROOT:-}/opt/whichrank"
    if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
      systemctl daemon-reload || true
    fi
    ;;
esac
case "${1:-}" in
  purge | 0)
    rm -rf "${DPKG_ROOT:-}/var/lib/whichrank" "${DPKG_ROOT:-}/var/lib/private/whichrank"
    rmdir "${DPKG_ROOT:-}/etc/whichrank" 2> /dev/null || true
    ;;
esac
