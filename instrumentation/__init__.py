"""Everything that lives inside the training process: ring writer, collective hooks, phases, steps, crash capture.

Imports torch only where it hooks it, and never numpy, Kafka or OpenTelemetry. Importing this package imports nothing.
"""
