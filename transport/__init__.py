"""The bus between agents and processors: one interface, the embedded log now, Kafka later."""
