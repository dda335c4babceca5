"""``whichrank report``: one HTML file that tells a run without a network, a server or Grafana."""
