"""The way onto the bus: encoding, queue, spool and the brokers' time."""
