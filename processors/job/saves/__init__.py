"""Which checkpoint is durable, and which was begun and not written?"""
