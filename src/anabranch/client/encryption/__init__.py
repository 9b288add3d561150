"""End-to-end encryption: producers encrypt bodies, consumers decrypt them, brokers see ciphertext only.

Each producer has its own data key (AES-256-GCM). Each entry carries the data key, wrapped with the public
key of every recipient. The form is that of Pulsar's clients, byte for byte. Keys, properties and times of single
messages stay readable, as in Pulsar.

No text of an error, log line or `repr` may contain key material. Only `key_wrapping` and `data_key` import the package
`cryptography` (extra `anabranch[crypto]`), and they are imported when encryption is used.

| module | what it is |
|---|---|
| `options` | `Encryption`, `Decryption`, `CryptoFailure`: what applications say |
| `key_source` | public and private keys from files or from a function of the application |
| `key_wrapping` | data keys wrapped with RSA or EC keys |
| `data_key` | one data key: encrypts and decrypts bodies |
| `entry_cipher` | encrypts the entries of one producer |
| `data_key_rotation` | makes the data keys of one producer, and replaces them |
| `decryptor` | decrypts the entries of one consumer with the data keys that are known |
| `key_fetcher` | unwraps data keys that the decryptor does not know |
"""
