"""The command line: thin skins, loaded one by one so that a small question gets a quick answer."""
