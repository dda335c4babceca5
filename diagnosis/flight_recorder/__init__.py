"""PyTorch flight-recorder dumps of many ranks -> who the others wait for.

``dump_files`` takes files' bytes, ``rank_dump`` makes facts of one dump, ``process_groups`` joins those of all ranks,
``group_state`` says how far each group got, ``dump_wait_graph`` follows who waits for whom, and ``analysis`` concludes.
Nothing here runs code that a dump asks for.
"""
