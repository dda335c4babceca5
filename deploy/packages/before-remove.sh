#!/bin/sh
# deb: "remove"; rpm: how many are left, 0 at the last.
set -e
case "${1:-}" in
  remove | 0)
    if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
      systemctl disable --now whichrank-agent.service whichrank-process.service || true
    fi
    ;;
esac
