"""`anabranch spark …`."""
