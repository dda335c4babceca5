"""What commands have in common: lines on stderr, signals, pages for probes, late imports. Knows no command."""
