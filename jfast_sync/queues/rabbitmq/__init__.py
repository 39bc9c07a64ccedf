"""The queue in RabbitMQ.

Read `queue` first, then what it is made of: `cascade` and `topology` say what is in the broker, `publisher` and
`consumer` talk to it, `ledger` knows what this process holds, `dead` reads the dead letters.
"""

from __future__ import annotations
