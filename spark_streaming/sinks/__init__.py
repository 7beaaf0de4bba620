"""Where jobs write."""
