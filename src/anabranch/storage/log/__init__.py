"""The commit log: group commit, write-behind, checkpoints, fencing, recovery."""
