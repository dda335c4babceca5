"""Whether a node is fit for a job: readings of its parts in, OK / WARN / CRITICAL / UNKNOWN with a reason out."""
