"""The description of the HTTP port.

| module | what it is |
|---|---|
| `document` | the OpenAPI document, made from the routes |
| `auto_scale_schemas` | JSON schemas of policies, load reports and decisions of auto-scaling |
| `result_schemas` | JSON schemas of successful answers |
| `topic_migration_schemas` | JSON schemas of the migration of a regular topic |
"""
