"""What the server's own configuration does to messages and subscriptions, as users of EMQX know it.

Pure: names and filters in, names, filters and verdicts out. The handler asks, once per session and Topic Name or once
per SUBSCRIBE.
"""
