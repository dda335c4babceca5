"""What ``notify`` and ``respond`` have in common: services that read incidents. Each is a policy on top of it."""
