"""ZooKeeper's wire protocol and client: used by the metadata store and by storage on BookKeeper."""
