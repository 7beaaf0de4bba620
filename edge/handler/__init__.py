"""The handler: what stands between a socket and a session engine, extending amqtt's protocol layer."""
