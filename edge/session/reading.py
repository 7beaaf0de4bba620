"""Why reading from a client is paused; it goes on when none of these holds (`SessionEngine.paused` is their sum)."""

HELD = 1  # packets wait behind a CONNECT or a SUBSCRIBE
UNACKNOWLEDGED = 2  # a 3.1.1 client has too much unacknowledged
RATE = 4
BACKBONE = 8  # the publisher's buffer is full
UNREAD = 16  # the client does not take what it asks for

UNACKNOWLEDGED_MAX_3 = 1_000  # 3.1.1 cannot be told a Receive Maximum: reading pauses at this many instead
