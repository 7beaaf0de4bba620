"""`python -m benchmarks.spark`: what the Spark jobs can take, and how long a result is on its way."""
