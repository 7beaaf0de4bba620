"""The session engine: what one MQTT connection does, as a pure machine. Events in, effects and bytes out.

No asyncio, sockets, clock or Kafka here: time comes in as an argument (`now`, seconds of a monotonic clock), what has
to be awaited goes out as an effect and comes back as a completion.
"""
