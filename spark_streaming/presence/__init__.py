"""Presence: one client's logic in plain Python, its place in Spark, and who is banned for a time."""
