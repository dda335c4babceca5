"""What dashboards and rules are made of: panels, variables, names of metrics and labels, recorded series."""
