"""The jobs: each is a thin main around pure transforms, run by `python -m spark_streaming.submit <job>`."""
