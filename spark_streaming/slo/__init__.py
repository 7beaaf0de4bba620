"""Loss, latency and duplicates from the delivery ledger."""
