"""Authentication and authorization.

It must not know connections, HTTP or topics.

| module | what it is |
|---|---|
| `access_control` | authenticates clients and checks permissions, for one broker |
| `authentication` | credentials to identity; the methods that are enabled |
| `tokens` | method `token`: JSON Web Tokens and their keys |
| `token_key_file` | a token key that follows changes of its file |
| `htpasswd` | method `basic`: passwords from an htpasswd file |
| `authorization` | roles, grants and the decision whether an action is allowed |
| `permissions` | what each command and route requires |
"""
