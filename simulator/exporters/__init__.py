"""Exporters of what the cluster's jobs share, and their pages as a Collector scrapes them."""
