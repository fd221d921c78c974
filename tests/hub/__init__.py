"""The Hub side, against a Hub server on loopback and the real client."""
