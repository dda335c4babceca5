"""What runs on Kafka: the agent and the processors as services, and commands that look after their topics."""
