"""Who may connect, what they may do, and how much.

`acl`, `bans`, `limits` and `principal` are pure: no I/O, no clock (time is an argument). `authentication`,
`password_file`, `amqtt_plugins` and `jwt` reach files, threads and other people's code.
"""
