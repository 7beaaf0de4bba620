"""The archive as one table."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigurationError
from spark_streaming.archive_files import visible_files


def read_archive(session: SparkSession, archive: Path) -> DataFrame:
    """Every message of the archive once, as of now, also while batches come in and hours are compacted.

    Raises ConfigurationError when there is none.
    """
    files = [str(file) for file in visible_files(archive)]
    if not files:
        raise ConfigurationError(f"{archive} holds no archive: `headwater spark run archive` fills one")
    return session.read.option("basePath", str(archive)).parquet(*files)
