"""Who is slow, from times: of phases per rank, of sections and kernels, of pairwise tests, of single operations."""
