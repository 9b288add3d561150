"""The description of the HTTP port.

| module | what it is |
|---|---|
| `document` | the OpenAPI document, made from the routes |
| `result_schemas` | JSON schemas of successful answers |
| `page` | the HTML page that shows the document and makes calls |
"""
