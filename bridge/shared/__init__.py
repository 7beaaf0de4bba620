"""Shared subscriptions: a Kafka group leases partitions to nodes, and there a strategy chooses members."""
