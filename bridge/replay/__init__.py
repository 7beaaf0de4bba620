"""Going back in time: read a range of the log by Topic Filter, merged by time, and write it somewhere else.

``reader`` reads and merges (``merging``, ``selection``), ``pacing`` says when each record is due, a sink writes it
(``jsonl``, ``parquet``, ``kafka_sink``), ``state`` remembers how far that got, and ``run`` is the loop around them.
"""
