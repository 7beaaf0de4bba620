"""Headwater's MQTT frontend: codec and session machines (pure), protocol handler, listeners, node, command line."""
