"""Restarts of one training: how long a part of it may take, and whether attempts get anywhere."""
