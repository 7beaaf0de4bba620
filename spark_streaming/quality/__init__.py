"""The topic catalogue: what batches say about families, folded into entries."""
