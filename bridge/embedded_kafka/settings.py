"""The files that the embedded Kafka reads: server.properties and its log configuration."""

from __future__ import annotations

from pathlib import Path

HOST = "127.0.0.1"
NODE_ID = 1
MESSAGE_BYTES_MAX = 2 * 1024 * 1024  # an MQTT packet of 1 MB with its headers, and room


def server_properties(data: Path, port: int, controller_port: int) -> dict[str, str]:
    """One broker that is its own controller, on loopback, with replication factor 1."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data / "log"),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
        # Internal topics on one broker; few partitions make the first start and each restart short.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "5",
        "offsets.retention.minutes": "10080",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "5",
        # Not sooner: a Kafka that was killed and started again is fenced once, up to 6 s after its start, until it has
        # registered anew, and a transaction that ends then never gets its markers: readers would wait for it for ever.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # Groups form at once, and a lost member is noticed within seconds.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "200",
        # A Kafka that was killed and started again must wait for its own old registration to end.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # A laptop, not a server.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "log.segment.delete.delay.ms": "1000",
    }


def log_properties(log_file: Path) -> dict[str, str]:
    """Log4j 2: a file of at most 8 MiB and two older ones."""
    return {
        "status": "error",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": str(log_file),
        "appender.file.filePattern": f"{log_file}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %p %m (%c)%n%throwable",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": "8MB",
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": "2",
        "rootLogger.level": "info",
        "rootLogger.appenderRef.file.ref": "file",
        "logger.config.name": "org.apache.kafka.common.config.AbstractConfig",
        "logger.config.level": "warn",
    }


def write_properties(path: Path, properties: dict[str, str]) -> Path:
    """Write a Java properties file.

    Raises:
        ValueError: a value holds a line break, which would start another property.
    """
    lines: list[str] = []
    for name, value in properties.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"a line break in {name}")
        escaped = value.replace("\\", "\\\\")
        lines.append(f"{name}={escaped}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
