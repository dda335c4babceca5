"""Restarts of one training: how long a part of it may take, whether attempts get anywhere, and chains that go wrong."""
