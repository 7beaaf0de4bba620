"""What crosses a process boundary: messages, topic names and filters, record layouts, routes, the Kafka topics.

A pure room: no asyncio, no sockets, no clock, no Kafka client. Everything here is imported by its module,
for example ``from schemas.topics import matches``.
"""
