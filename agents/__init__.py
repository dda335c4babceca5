"""The node process: reads the rings of this node's ranks, watches their processes, ships what it learned.

Imports nothing by itself; ``whichrank.agents.job_agent.Agent`` is the way in.
"""
