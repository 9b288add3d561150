"""Routes that the web pages need beyond Pulsar's API. They are public, as all routes are.

| module | what it is |
|---|---|
| `messages` | the newest messages of topics |
| `pages` | the web console at `/`: static files |
| `timeline` | timelines of scalable topics: geometry, ticks, live events |
"""
