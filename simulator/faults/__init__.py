"""What can go wrong, as data: changes of resources at places and times, and the truth about them (``catalogue``).

Nothing here may import more of the simulator than where things are and what a change is; a test enforces it.
"""
