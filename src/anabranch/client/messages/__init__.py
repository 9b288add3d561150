"""Messages and entries as values: ids, received messages, batches, messages to send, compression and chunks.

No connections, no clock.

| module | what it is |
|---|---|
| `message` | received messages and message ids, and the bytes form of ids |
| `message_batch` | many received messages as a sequence or as columns |
| `entry_contents` | the decoded messages of one entry |
| `outgoing` | messages to send, and the entries that carry them |
| `chunking` | messages larger than an entry: cut into chunks, and assembled again |
| `compression` | compressed bodies |
| `timestamps` | times given by applications, in milliseconds |
"""
