"""The description of the HTTP port.

| module | what it is |
|---|---|
| `document` | the OpenAPI document, made from the routes |
| `result_schemas` | JSON schemas of successful answers |
"""
