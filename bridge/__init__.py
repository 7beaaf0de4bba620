"""MQTT messages on Kafka: partition mapping, subscriptions, publisher, deliverer, membership.

``bridge`` knows messages, subscribers and Kafka; it never hears of MQTT packets or packet identifiers.
"""
