"""Automatic split and merge (PIP-483): policy, load, and the decision. Pure values and functions; does not know stores,
brokers, clocks or logs. The broker and `anabranch spark simulate` use this one evaluator.

| module | what it is |
|---|---|
| `policy` | the policy: fields, invariants, combination of broker, namespace and topic |
| `load` | the load report of a segment: values, when it is written, JSON |
| `decision` | what the evaluator answers: action, reason, what is suppressed and by which rule; JSON |
| `history` | what is remembered between decisions: cooldowns, failures, the last 100 decisions; JSON |
| `evaluator` | `decide`: two passes over layout, loads and consumers |
| `simulation` | a topic on paper that scales by a policy, tick by tick |
| `scenarios` | synthetic days for it |

How the leader of a topic uses it:

    policy = broker_policy.overridden(namespace_override, record.auto_scale_policy)         # BadPolicy: as if disabled
    history = stored.at(last_split_at_ms=record.last_split_at_ms, last_merge_at_ms=record.last_merge_at_ms,
                        operation=None or "split of [3]").without_sealed(active segment ids)
    decision = decide(record.layout, loads, groups, policy, history, now_ms, unowned=segments without a living owner)
    match decision.action:
        case Split(segment_id, points): split(segment_id, points=points, reason=decision.reason)
        case Merge(segment_ids): merge(segment_ids, reason=decision.reason)
        case None: decide again at decision.due_at_ms (None: only when something is reported)
    history = history.with_decision(decision, now_ms, record.epoch)          # then with_outcome(action, now_ms, error)

How the owner of a segment uses it: see `load`.
"""
