"""DataFrames in tests."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame
from pyspark.testing import assertDataFrameEqual


def assert_rows(found: DataFrame, expected: list[tuple[Any, ...]]) -> None:
    """pyspark's `assertDataFrameEqual` against plain rows of the same schema, in any order.

    With pandas and pyarrow there it imports pandas-on-Spark, which pandas 3 breaks: it does not see pyarrow here.
    """
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        assertDataFrameEqual(found, found.sparkSession.createDataFrame(expected, found.schema))
