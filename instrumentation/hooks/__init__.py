"""One module per place of torch that is hooked for phases, steps and losses.

Each module has one function, ``install(context)``, which patches what it finds and leaves the way back in
``context.patches`` or ``context.undo``. What a wrapper does is always: note, call the original with the very same
arguments, note, return the very same result. While torch.compile traces, wrappers pass straight through.
"""
