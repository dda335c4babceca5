"""One collector per source of a node's own signals: GPU, kernel log, network, storage, host, processes, job logs."""
