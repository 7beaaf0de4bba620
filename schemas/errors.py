"""The errors that every room of Headwater shares.

HeadwaterError                 the root: catch this to catch everything that is ours
├── ConfigurationError         the operator's fault: the text says which setting and what to do about it
├── TopicError                 a Topic Name or Topic Filter breaks a rule of MQTT or a configured limit
└── RecordError                a Kafka record or stored JSON does not follow its layout
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """The root of all errors that Headwater raises on purpose."""


class ConfigurationError(HeadwaterError):
    """A setting is wrong; the text names it and says what to do."""


class TopicError(HeadwaterError):
    """A Topic Name or Topic Filter is not acceptable; the text names the rule."""


class RecordError(HeadwaterError):
    """A Kafka record (or JSON in it) cannot be read; such a record belongs in the dead-letter topic."""
