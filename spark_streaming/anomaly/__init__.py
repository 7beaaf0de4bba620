"""Alerts from per-device state: the rules, one device's logic in plain Python, and its place in Spark."""
