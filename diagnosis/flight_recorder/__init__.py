"""PyTorch flight-recorder dumps of many ranks -> who the others wait for.

``directory`` reads files, ``rank_dump`` makes facts of one dump, ``collectives`` joins the facts of all ranks by process
group and sequence number, ``group_state`` says how far each group got, ``wait_graph`` follows who waits for whom, and
``analysis`` concludes. Nothing here runs code that a dump asks for.
"""
