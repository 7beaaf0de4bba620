"""Replay as a subscription: `$replay/<from>[/<to>]/<topic filter>` sends what the log holds, then goes on live."""
