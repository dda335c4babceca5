"""What Grafana shows: dashboards as code, generated into ``grafana/dashboards``, and the rules that page."""
