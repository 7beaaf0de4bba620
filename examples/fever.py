"""Fever: every temperature above a limit, at once, as `analytics/fever/<device>`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.records import HEADER_TOPIC
from schemas.routes import ANALYTICS
from spark_streaming.job import Job, run_job
from spark_streaming.options import common_options, job_parser, parse_arguments
from spark_streaming.runner import default_data_folder, run_main
from spark_streaming.sinks.kafka import kafka_writer
from spark_streaming.sources.kafka import input_kafka_topics, message_records
from spark_streaming.transforms.device_stats import ReadingRules, parsed, readings
from spark_streaming.transforms.results import header

JOB = "fever"


def fevers(found: DataFrame, limit: float) -> DataFrame:
    """The readings (device, metric, value, ...) of a temperature above the limit."""
    return found.where((fn.col("metric") == "temp") & (fn.col("value") > limit))


def fever_records(found: DataFrame) -> DataFrame:
    """Kafka records: edges deliver what lies on `mqtt.analytics` under the name in its `mqtt.topic` header."""
    topic_name = fn.concat_ws("/", fn.lit("analytics/fever"), "device")
    return found.select(
        fn.col("device").cast("binary").alias("key"),
        fn.to_json(fn.struct("device", "value", "event_time")).cast("binary").alias("value"),
        fn.array(header(HEADER_TOPIC, topic_name)).alias("headers"),
        fn.lit(ANALYTICS).alias("topic"),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    parser = job_parser(JOB, __doc__)
    parser.add_argument("--limit", type=float, default=38.0, help="degrees (default 38)")
    options = parse_arguments(parser, arguments)
    common = common_options(JOB, options, default_data_folder())
    inputs = input_kafka_topics(common.routes)
    rules = ReadingRules(routes=common.routes)

    def writers(session: SparkSession, starting_offsets: str) -> list[DataStreamWriter]:
        records = message_records(session, common.kafka, inputs, starting_offsets=starting_offsets)
        rows = fever_records(fevers(readings(parsed(records, rules), rules), options.limit))
        return [kafka_writer(rows, common.kafka, JOB, common.checkpoint / JOB, "update", common.trigger)]

    return run_job(Job(JOB, common, {"job": JOB}, inputs, (ANALYTICS,), writers))


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
