"""Routes that the web pages need beyond Pulsar's API. They are public, as all routes are.

| module | what it is |
|---|---|
| `allowed_calls` | which calls the caller may make |
| `messages` | messages of topics: the newest, or pages |
| `operations` | the journal of changes |
| `pages` | the web console at `/`: static files |
| `timeline` | timelines of scalable topics: geometry, ticks, live events |
"""
