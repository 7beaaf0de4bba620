"""PySpark Structured Streaming over Headwater's Kafka topics: sources -> transforms (pure) -> sinks, thin jobs."""
