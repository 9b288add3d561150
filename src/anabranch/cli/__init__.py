"""The command line `anabranch`. Commands parse options, call the SDK, the admin client or a node, and print.

Each command module is imported when its command runs, so that `anabranch --help` stays fast. The package must not
contain behaviour that a program could need; such code belongs to `client`, `admin`, `metadata`, `node` or `spark`.

| module | what it is |
|---|---|
| `main` | the command `anabranch` and its subcommands |
| `admin` | `anabranch admin …` |
| `metadata` | `anabranch metadata …` |
| `storage` | `anabranch storage …` |
| `serve` | `anabranch standalone` and `anabranch broker` |
| `traffic` | `anabranch produce`, `consume`, `tail` and `bench` |
| `spark` | `anabranch spark …` |
| `token` | `anabranch token …` |
| `watch` | `anabranch watch` |
| `contexts` | `anabranch context …` |
| `context_file` | named connections in a file of the user |
| `diagnose` | `anabranch doctor`, `explain`, `top` and `wait` |
| `config` | `anabranch config …` |
| `completion` | `anabranch completion` |
| `broker_names` | names that a shell completes, from the broker |
| `version` | `anabranch --version` |
| `output` | tables, progress and text for people |
| `errors` | one line per failure, and the exit code |
| `param_types` | option types: durations, sizes, lists |
| `lazy_group` | click groups: suggestions for unknown commands, subcommands imported on use |
"""
