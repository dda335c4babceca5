"""What judges the product: ``simulate`` and ``bench``, and who writes docs/reference.md. With ``simulator/`` it is a
distribution of its own, whichrank-evaluation: nobody who watches a job needs a simulated cluster.
"""
