"""The node: one edge process. Configuration, Kafka, listeners, HTTP, metrics, and their order of start and stop."""
