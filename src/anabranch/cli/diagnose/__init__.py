"""Commands that say how things are: `anabranch doctor`, `explain`, `top` and `wait`.

| module | what it is |
|---|---|
| `attention` | what needs attention in a cluster, as a pure function of facts |
| `cluster_facts` | reads these facts over REST, with a bound on topics |
| `doctor` | `anabranch doctor`: the list, and an exit code for monitoring |
| `explain` | `anabranch explain CODE`: what an error code means |
| `top` | `anabranch top`: the busiest topics, live |
| `wait` | `anabranch wait`: until a topic is in a state |
"""
