"""The Spark session of a job."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import SparkConf
from pyspark.sql import SparkSession

_STATE_STORES = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
SLOTS_MIN = 6
_SPARE_SLOTS = 2  # for the micro-batch query beside a real-time one


def slots_needed(partitions: int, shuffle_partitions: int) -> int:
    """In real-time mode every task of a query runs all the time, so each needs a slot; slots are threads, not cores."""
    return max(SLOTS_MIN, partitions + shuffle_partitions + _SPARE_SLOTS)


def job_session(
    name: str, slots: int, shuffle_partitions: int, state_store: str, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the settings that all jobs share, and one job's own; a local master gets the slots."""
    conf = SparkConf()
    if conf.get("spark.master", "local").startswith("local"):
        conf.setMaster(f"local[{slots}]")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",  # streaming does without it, and says so at every start
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORES[state_store],
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2" if state_store == "rocksdb" else "1",
        "spark.sql.streaming.metricsEnabled": "false",
        **(more or {}),
    }
    return SparkSession.builder.config(conf=conf).config(map=settings).appName(f"headwater-{name}").getOrCreate()
